//! A model's pages, by layer and side, and what they are stored as.

mod guards;

use ebb_block_manager::precision::{LevelChange, Page, PageLevel, PageSide};
use ebb_kernels::formats::{FormatId, legal_shrink};
use ebb_kernels::kv::Side;
use ebb_kernels::model::ModelSpec;

pub use guards::{Guards, PageFormats, RecentGuard, by_length};

/// Width that guarded blocks of a sequence keep, of old the first and the last sealed one
/// ([`Guards`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protect {
    /// 8 bit: practically lossless.
    #[default]
    Int8,
    /// 16 bit.
    F16,
}

/// Formats of protected pages whose final formats are `sealed`.
pub(crate) fn protected_formats(sealed: &[FormatId], protect: Protect) -> Vec<FormatId> {
    let protected = sealed.iter().enumerate().map(|(page, &format)| {
        let side = Side::of_page(page);
        let reachable = format == FormatId::Int8 || legal_shrink(FormatId::Int8, format, side);
        match protect {
            Protect::Int8 if reachable => FormatId::Int8,
            _ => FormatId::F16,
        }
    });
    protected.collect()
}

/// The first layer whose keys have codes of RoPE's pairs of channels, although RoPE rotates a part
/// of its heads, or a record is a part of a head, and so has other pairs: the layer of the model,
/// the format, and the channels of a record that rotate in pairs.
pub(crate) fn other_pairs(
    model: &ModelSpec,
    formats: &[FormatId],
) -> Option<(usize, FormatId, usize)> {
    let places = model.kv_places();
    let mut keys = formats.iter().step_by(2).zip(model.kv_layers());
    keys.find_map(|(&format, layer)| {
        let attention = model.attention(layer);
        let rotary_dim = match places[layer]?.parts() {
            1 => model.ropes[attention.rope?].rotary_dim(),
            _ => 0,
        };
        let is_partial = rotary_dim < attention.head_dim;
        (is_partial && format.is_of_rope_pairs()).then_some((layer, format, rotary_dim))
    })
}

/// `k`, `v`, `layer7.k`.
pub(crate) fn page(key: &str) -> Option<(Option<usize>, Side)> {
    let (layer, side) = match key.split_once('.') {
        Some((layer, side)) => (Some(layer.strip_prefix("layer")?.parse().ok()?), side),
        None => (None, key),
    };
    match side {
        "k" => Some((layer, Side::K)),
        "v" => Some((layer, Side::V)),
        _ => None,
    }
}

/// A step of the block manager's, which knows formats by tag and nominal bits.
pub(crate) fn level_change(layer: usize, side: Side, to: FormatId) -> LevelChange {
    LevelChange {
        page: Page {
            layer: layer as u16,
            side: match side {
                Side::K => PageSide::K,
                Side::V => PageSide::V,
            },
        },
        to: PageLevel {
            tag: index_of(to) as u8,
            // A request that asks for 3 bit must not get 2.5.
            bits: to.nominal_bits().floor() as u8,
        },
    }
}

/// Place of a format in [`FormatId::ALL`].
pub(crate) fn index_of(format: FormatId) -> usize {
    let at = FormatId::ALL.iter().position(|f| *f == format);
    at.expect("ALL lists every format")
}
