//! How the KV cache shrinks: from what the operator says to a shrink order, its precision levels
//! and their byte layout.

mod level_changes;

use std::sync::Arc;

use ebb_block_manager::precision::{
    BlockSize, LevelChange, LevelTable, MinBits, PageSide, ShrinkOrder, ShrinkOrderError,
};
use ebb_block_manager::{BLOCK_TOKENS, PoolConfig, WindowConfig};
use ebb_kernels::formats::FormatId;
use ebb_kernels::formats::rotation::Rotation;
use ebb_kernels::kv::{KvGeometry, KvLayout, LayoutError, PageBytes, Side};
use ebb_models::model::{KeyScales, LoadedModel};
use ebb_scheduler::Mode;
use thiserror::Error;

use crate::kv_pages::{Guards, Protect, RecentGuard, index_of};
use crate::kv_profile::{Profile, ProfileError};
use crate::kv_spec::{KvSpec, KvSpecError, check_pairs};

pub use level_changes::{DEFAULT_FLOOR, progressive_changes, static_changes};

/// Where the shrink order comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum KvSource {
    /// The built-in order, down to the formats of a specification.
    Floor(KvSpec),
    /// A calibrated profile, cut at a width (`mean_bits_sealed`) if one is given.
    Profile(Arc<Profile>, Option<f64>),
}

impl KvSource {
    /// Whether it fits this model ([`KvSpec::check_model`]). Reads the weights if it has a profile.
    ///
    /// # Errors
    /// When it does not.
    pub fn check_model(&self, model: &LoadedModel) -> Result<(), KvPlanError> {
        match self {
            Self::Floor(spec) => Ok(spec.check_model(model)?),
            Self::Profile(profile, bits) => {
                profile.check_model(&model.identity())?;
                let geometry = model.spec.kv_geometry();
                let formats = profile.formats(geometry, *bits, profile.protect())?;
                Ok(check_pairs(&model.spec, &formats.sealed)?)
            }
        }
    }
}

/// Why the KV cache cannot be as asked for.
#[derive(Debug, Error)]
pub enum KvPlanError {
    /// The specification does not fit the model.
    #[error(transparent)]
    Spec(#[from] KvSpecError),
    /// The profile does not fit the model.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A static format as floor of the progressive mode.
    #[error(
        "--kv-floor: layer {layer}'s {side} cannot shrink to {format} step by step; the ladder is \
         {ladder}. Choose one of these, or --kv-mode static"
    )]
    OffLadder {
        /// Layer.
        layer: usize,
        /// `k` or `v`.
        side: &'static str,
        /// The format asked for.
        format: FormatId,
        /// What there is.
        ladder: String,
    },
    /// More recent blocks than are guarded.
    #[error(
        "the KV specification keeps the last {blocks} sealed blocks at the protected width; a \
         server keeps the last one at most: give it recent=0 or recent=1"
    )]
    Recent {
        /// Blocks asked for.
        blocks: usize,
    },
    /// KVmix's rule where memory decides what shrinks.
    #[error(
        "recent=profile keeps recent tokens by KVmix's rule, which needs --kv-mode static: in mode \
         progressive memory decides; give it recent=0 or recent=1, or choose --kv-mode static"
    )]
    Rule,
    /// Every token as if it followed a prompt.
    #[error(
        "recent=share scores a text as if each of its tokens followed a prompt, for `ebb eval`; a \
         server has real prompts: give it recent=profile"
    )]
    AfterPrompt,
    /// Blocks that come down by length in a mode where they come down at once.
    #[error(
        "shrink=by-length brings blocks down step by step as a sequence grows, but in mode static \
         they go to their final formats at once; leave it out (in --kv-mode progressive the memory \
         of the pool decides instead)"
    )]
    ByLength,
    /// A sink of tokens, and not of blocks.
    #[error(
        "the KV specification keeps the first 32 tokens alone at 16 bit (sink=32), which ebb eval \
         scores; a server guards whole blocks: give it sink=1, which keeps the first 128 tokens, \
         or sink=0"
    )]
    Sink,
    /// More changes than a shrink order can have.
    #[error("this model has too many pages for a shrink order: {0}")]
    ShrinkOrder(#[from] ShrinkOrderError),
    /// Pages that the model cannot have.
    #[error("the KV cache cannot have these pages: {0}")]
    Layout(#[from] LayoutError),
}

/// A pool's shrink order, precision levels and layout, for one model and mode.
#[derive(Debug, Clone)]
pub struct KvPlan {
    /// What gives way when memory is full.
    pub mode: Mode,
    /// Every level, with its cost.
    pub levels: LevelTable,
    /// What blocks keep behind a sliding window, if some layers have one.
    pub window: Option<WindowConfig>,
    /// Where the bytes of a block lie at every level.
    pub layout: KvLayout,
    /// How far the last sealed block may go.
    pub protected: MinBits,
    /// How far the first one may.
    pub sink: MinBits,
    /// Share of the recent context that stays at 16 bit by KVmix's rule, in thousandths: the
    /// greatest of all pages, since a block is guarded with all of its pages.
    pub recent_permille: u32,
    /// What is rotated.
    pub rotation: Rotation,
    /// PM-KVQ's λ, for the weights, or for every step where those are packed.
    pub key_scales: Option<Arc<KeyScales>>,
}

impl KvPlan {
    /// Blocks that stay at 16 bit.
    ///
    /// # Errors
    /// When the geometry is impossible.
    pub fn sixteen_bit(geometry: KvGeometry) -> Result<Self, KvPlanError> {
        let layout = KvLayout::sixteen_bit(geometry)?;
        let [whole, kept] = layout.page_bytes(0).map(size);
        Ok(Self {
            mode: Mode::PreemptOnly,
            levels: LevelTable::fixed(whole),
            window: window(&layout, LevelTable::fixed(kept)),
            layout,
            protected: MinBits::SIXTEEN,
            sink: MinBits::SIXTEEN,
            recent_permille: 0,
            rotation: Rotation::NONE,
            key_scales: None,
        })
    }

    /// The plan of a mode for a model's KV cache.
    ///
    /// # Errors
    /// When the model cannot have such pages, or the mode cannot get there.
    pub fn new(geometry: KvGeometry, mode: Mode, source: &KvSource) -> Result<Self, KvPlanError> {
        if mode == Mode::PreemptOnly {
            return Self::sixteen_bit(geometry);
        }
        geometry.validate().map_err(LayoutError::from)?;
        match source {
            KvSource::Floor(spec) => {
                let formats = spec.formats(geometry)?;
                let changes = match spec.only_profile() {
                    Some((profile, bits)) => profile.changes(geometry, bits)?,
                    None if mode == Mode::Static => static_changes(&formats),
                    None => progressive_changes(&formats.sealed)?,
                };
                let bounds = bounds(&formats.guards, spec.protect())?;
                let recent_permille = rule_share(&formats.guards, mode)?;
                if mode == Mode::Static && spec.comes_down_by_length() {
                    return Err(KvPlanError::ByLength);
                }
                Ok(Self {
                    recent_permille,
                    key_scales: spec.key_scales(),
                    ..Self::of_changes(geometry, mode, changes, bounds, spec.rotation())?
                })
            }
            KvSource::Profile(profile, bits) => {
                let changes = profile.changes(geometry, *bits)?;
                let bounds = bounds(&Guards::usual(geometry.layers), profile.protect())?;
                Ok(Self {
                    key_scales: profile.key_scales.clone().map(Arc::new),
                    ..Self::of_changes(geometry, mode, changes, bounds, profile.rotation())?
                })
            }
        }
    }

    fn of_changes(
        geometry: KvGeometry,
        mode: Mode,
        changes: Vec<LevelChange>,
        [sink, protected]: [MinBits; 2],
        rotation: Rotation,
    ) -> Result<Self, KvPlanError> {
        let order = ShrinkOrder::new(geometry.layers as u16, changes)?;
        let frame = geometry.frame_layout();
        let mut failed = None;
        let levels = LevelTable::new(&order, |taken| {
            let cost = KvLayout::cost(geometry, frame, &formats_after(geometry, taken));
            let nothing = PageBytes {
                frames: 0,
                bytes: 0,
            };
            let [whole, _] = cost.unwrap_or_else(|error| {
                failed.get_or_insert(error);
                [nothing; 2]
            });
            size(whole)
        });
        if let Some(error) = failed {
            return Err(error.into());
        }
        let shrunk =
            (1..levels.len() as u16).map(|level| formats_after(geometry, levels.changes(level)));
        let shrunk: Vec<Vec<FormatId>> = shrunk.collect();
        let layout = KvLayout::new(geometry, frame, &shrunk)?;
        let kept = levels.resized(|level| size(layout.page_bytes(level)[1]));
        Ok(Self {
            mode,
            window: window(&layout, kept),
            layout,
            levels,
            protected,
            sink,
            recent_permille: 0,
            rotation,
            key_scales: None,
        })
    }

    /// A pool of `frames` frames.
    pub fn pool(&self, frames: u32) -> PoolConfig {
        let frame = self.layout.frame();
        PoolConfig {
            levels: self.levels.clone(),
            window: self.window.clone(),
            protected: self.protected,
            sink: self.sink,
            ..PoolConfig::whole(
                frames,
                frame.frame_bytes as u64,
                frame.frames_per_sub_block as u32,
            )
        }
    }

    /// Mean stored bits (codes and metadata) of sealed unprotected pages at the floor: design's
    /// *width*.
    pub fn floor_bits(&self) -> f64 {
        let floor = self.levels.floor(MinBits::ANY);
        let elements = self.layout.geometry().block_bytes() as f64 / 2.0;
        self.layout.bytes(floor) as f64 * 8.0 / elements
    }

    /// Bytes of each format in blocks at a precision level, in the order of [`FormatId::ALL`]; and
    /// pages. Those of layers with a sliding window are left out if `is_trimmed`.
    pub fn bytes_by_format(&self, level: u16, is_trimmed: bool) -> Vec<(u64, u32)> {
        let geometry = self.layout.geometry();
        let mut sums = vec![(0, 0); FormatId::ALL.len()];
        for (page, &format) in self.layout.formats(level).iter().enumerate() {
            if is_trimmed && geometry.windowed.contains(page / 2) {
                continue;
            }
            let bytes = self
                .layout
                .record_bytes(level, page / 2, Side::of_page(page));
            // At level 0 a record is as long as at any other 16-bit one.
            debug_assert!(level > 0 || bytes * geometry.records() == geometry.block_bytes());
            let sum = &mut sums[index_of(format)];
            sum.0 += (bytes * geometry.kv_heads) as u64;
            sum.1 += 1;
        }
        sums
    }
}

/// What pages take, as the pool counts it.
fn size(pages: PageBytes) -> BlockSize {
    let PageBytes { frames, bytes } = pages;
    BlockSize { frames, bytes }
}

/// What blocks keep behind a sliding window, if some layers have one.
fn window(layout: &KvLayout, kept: LevelTable) -> Option<WindowConfig> {
    let windowed = layout.geometry().windowed;
    (!windowed.is_empty()).then(|| WindowConfig {
        tokens: windowed.tokens(),
        kept_per_sub_block: layout.kept_per_sub_block(),
        kept,
    })
}

/// How far the first and the last sealed block may go.
///
/// # Errors
/// When more blocks are to be guarded than the pool guards, or a part of one.
fn bounds(guards: &Guards, protect: Protect) -> Result<[MinBits; 2], KvPlanError> {
    let width = match protect {
        Protect::Int8 => MinBits(8),
        Protect::F16 => MinBits::SIXTEEN,
    };
    if guards.sink_formats.is_some() {
        return Err(KvPlanError::Sink);
    }
    let guarded = |is_guarded| if is_guarded { width } else { MinBits::ANY };
    // A block is guarded with all of its pages or with none, and one alone is both the first and
    // the last.
    let blocks = |recent: &RecentGuard| match *recent {
        RecentGuard::Blocks(count) => count,
        RecentGuard::Rule(_) | RecentGuard::AfterPrompt(_) => 0,
    };
    match guards.recent.iter().map(blocks).max().unwrap_or(0) {
        blocks @ 0..=1 => Ok([guarded(guards.sink || blocks == 1), guarded(blocks == 1)]),
        blocks => Err(KvPlanError::Recent { blocks }),
    }
}

/// The greatest share of KVmix's rule, in thousandths.
///
/// # Errors
/// When a page goes by a share in a way or a mode that a server does not have.
fn rule_share(guards: &Guards, mode: Mode) -> Result<u32, KvPlanError> {
    let mut greatest = 0;
    for recent in &guards.recent {
        match *recent {
            RecentGuard::Blocks(_) | RecentGuard::Rule(0) => {}
            RecentGuard::Rule(share) if mode == Mode::Static => greatest = greatest.max(share),
            RecentGuard::Rule(_) => return Err(KvPlanError::Rule),
            RecentGuard::AfterPrompt(_) => return Err(KvPlanError::AfterPrompt),
        }
    }
    Ok(greatest)
}

/// Most frames that one pool can have: ids are 32 bits.
pub fn frames_of(geometry: KvGeometry, bytes: u64) -> u32 {
    u32::try_from(bytes / geometry.frame_layout().frame_bytes as u64).unwrap_or(u32::MAX - 1)
}

/// Tokens of a static mode's chunk, unless memory is short or others are asked for: of few prompts
/// at once, enough for large products.
const STATIC_CHUNK_MAX: u32 = 2048;

/// Chunk of the static mode that keeps at most a sixteenth of the pool for itself.
#[must_use]
pub fn static_chunk(pool: &PoolConfig) -> u32 {
    let blocks = pool.frames / pool.block_frames() / 16;
    let block = BLOCK_TOKENS as u32;
    (blocks * block).clamp(block, STATIC_CHUNK_MAX)
}

/// Formats of all pages of a block that has taken `changes`.
fn formats_after(geometry: KvGeometry, changes: &[LevelChange]) -> Vec<FormatId> {
    let mut formats = vec![FormatId::F16; geometry.layers * 2];
    for change in changes {
        let side = match change.page.side {
            PageSide::K => Side::K,
            PageSide::V => Side::V,
        };
        formats[usize::from(change.page.layer) * 2 + side as usize] =
            FormatId::ALL[usize::from(change.to.tag)];
    }
    formats
}

#[cfg(test)]
mod tests;
