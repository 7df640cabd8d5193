//! The level changes of the built-in shrink orders.

use ebb_block_manager::precision::LevelChange;
use ebb_kernels::formats::{FormatId, legal_shrink, precision_levels};
use ebb_kernels::kv::Side;

use super::KvPlanError;
use crate::kv_pages::{PageFormats, level_change};

/// Where the progressive mode ends unless told otherwise: the lowest formats that keep a small
/// model usable without calibration (perplexity +4 % on SmolLM2-135M; one format lower it is +6 %,
/// another one +15 %).
pub const DEFAULT_FLOOR: &str = "k=kitty25c,v=int2c";

/// The order in which pages come down without calibration: what costs the least per byte first, as
/// measured with uniform formats (`benches/results`, quality). Keys need their bits, values do not.
const PASSES: [(Side, FormatId); 15] = [
    (Side::V, FormatId::Int8),
    (Side::K, FormatId::Int8),
    (Side::K, FormatId::Int8t),
    (Side::V, FormatId::Int4),
    (Side::K, FormatId::Int4),
    (Side::K, FormatId::Int4t),
    (Side::V, FormatId::Int2c),
    (Side::V, FormatId::Int2),
    (Side::K, FormatId::Kitty25c),
    (Side::K, FormatId::Kitty25),
    (Side::K, FormatId::Kitty12c),
    (Side::K, FormatId::Kitty12),
    (Side::K, FormatId::Int2c),
    (Side::K, FormatId::Int2),
    (Side::K, FormatId::Int2t),
];

/// Changes down the ladders to `floor`, `[layer * 2 + side]`, each format for all layers before the
/// next.
///
/// # Errors
/// When a floor is a static format.
pub fn progressive_changes(floor: &[FormatId]) -> Result<Vec<LevelChange>, KvPlanError> {
    for (page, &format) in floor.iter().enumerate() {
        let side = Side::of_page(page);
        if !precision_levels(side).any(|f| f == format) {
            let names: Vec<&str> = precision_levels(side).map(FormatId::name).collect();
            return Err(KvPlanError::OffLadder {
                layer: page / 2,
                side: match side {
                    Side::K => "k",
                    Side::V => "v",
                },
                format,
                ladder: names.join(", "),
            });
        }
    }
    let mut changes = Vec::new();
    for (side, to) in PASSES {
        for layer in 0..floor.len() / 2 {
            let floor = floor[layer * 2 + side as usize];
            if to == floor || legal_shrink(to, floor, side) {
                changes.push(level_change(layer, side, to));
            }
        }
    }
    Ok(changes)
}

/// Changes straight to the given formats: protected ones first, so that the chain of the protected
/// width is those.
pub fn static_changes(formats: &PageFormats) -> Vec<LevelChange> {
    let pages = |formats: &[FormatId]| {
        let pages = formats.iter().copied().enumerate();
        let pages: Vec<_> = pages.filter(|(_, f)| *f != FormatId::F16).collect();
        pages
    };
    let mut changes = Vec::new();
    for (page, to) in pages(&formats.protected) {
        changes.push(level_change(page / 2, Side::of_page(page), to));
    }
    for (page, to) in pages(&formats.sealed) {
        if formats.protected[page] != to {
            changes.push(level_change(page / 2, Side::of_page(page), to));
        }
    }
    changes
}
