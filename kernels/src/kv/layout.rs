//! Where every record of a block lies, at every precision level.
//!
//! At level 0 a block is eight 16-bit sub-blocks (see [`KvGeometry::sub_record_place`]). At a
//! later level it is one record per (layer, side, head) in the format of its page, one right
//! behind the other in that order, those of 16 bit before all others; a record that does not fit in
//! the rest of a frame goes on at the start of the block's next one. So a block wastes only the end
//! of its last frame, whatever its formats, and 16 rows of 16 bit lie in one frame as they do at
//! level 0, at a multiple of their own size.
//!
//! Layers with a sliding window come behind all others, so what a block keeps behind the window are
//! its first frames (at level 0 the first of each sub-block). The frames after them are *windowed*.

use super::{FrameLayout, GeometryError, KvGeometry, Side};
use crate::SUB_BLOCKS;
use crate::formats::{FormatError, FormatId, RecordShape};

/// Bytes that the start of every record is a multiple of.
pub const RECORD_ALIGN: usize = 16;

/// Where a record of a shrunk block lies. No record is longer than a frame, so it has one part or
/// two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordPlace {
    /// Frame of its first byte, counted within the block.
    pub frame: u32,
    /// Byte offset in the frame, a multiple of [`RECORD_ALIGN`].
    pub offset: u32,
    /// Bytes that lie in this frame, a multiple of [`RECORD_ALIGN`]; the rest begins the block's
    /// next frame.
    pub first_part: u32,
}

/// A list of levels that no pool of this geometry can have.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LayoutError {
    /// The geometry itself is impossible.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The frames are not a partition of a 16-bit sub-block into whole sub-records.
    #[error("a 16-bit sub-block cannot be cut into frames as {0:?} says")]
    Frames(FrameLayout),
    /// A level does not name a format for every page.
    #[error("precision level {level} names {given} page formats, the model has {pages} pages")]
    Pages {
        /// The level.
        level: usize,
        /// Formats given.
        given: usize,
        /// Layers times two sides.
        pages: usize,
    },
    /// A page cannot have its format.
    #[error("precision level {level}, layer {layer}, side {side:?}: {error}")]
    Format {
        /// The level.
        level: usize,
        /// Layer of the page.
        layer: usize,
        /// Side of the page.
        side: Side,
        /// Why not.
        error: FormatError,
    },
    /// A record is larger than a frame; only models with fewer than eight records a block have
    /// such.
    #[error(
        "precision level {level}: a {format} record takes {bytes} bytes, more than the \
         {frame} of a frame; this model is too small to be shrunk to that"
    )]
    Record {
        /// The level.
        level: usize,
        /// The format.
        format: FormatId,
        /// Bytes of its record.
        bytes: usize,
        /// Bytes of a frame.
        frame: usize,
    },
    /// More levels than a block can be at.
    #[error("{0} precision levels are more than a block's record counts (65535)")]
    TooMany(usize),
}

#[derive(Debug, Clone, PartialEq)]
struct Level {
    /// `[layer * 2 + side]`.
    formats: Vec<FormatId>,
    /// `[record]`; empty at level 0.
    places: Vec<RecordPlace>,
    /// Bytes of each record of a page, `[layer * 2 + side]`.
    record_bytes: Vec<u32>,
    frames: u32,
    /// Those of them that layers without a window use.
    kept_frames: u32,
}

/// What the pages of a block take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageBytes {
    /// Frames.
    pub frames: u32,
    /// Bytes of codes and metadata.
    pub bytes: u64,
}

/// The byte layout of a pool's blocks: every level's formats, places and frame count.
#[derive(Debug, Clone, PartialEq)]
pub struct KvLayout {
    geometry: KvGeometry,
    frame: FrameLayout,
    levels: Vec<Level>,
}

impl KvLayout {
    /// A pool whose blocks never shrink.
    pub fn sixteen_bit(geometry: KvGeometry) -> Result<Self, LayoutError> {
        geometry.validate()?;
        Self::new(geometry, geometry.frame_layout(), &[])
    }

    /// A pool whose blocks can stand at level 0 and at `shrunk.len()` more; each lists the
    /// formats of all pages, `[layer * 2 + side]`. `frame` is most often
    /// [`KvGeometry::frame_layout`].
    pub fn new(
        geometry: KvGeometry,
        frame: FrameLayout,
        shrunk: &[Vec<FormatId>],
    ) -> Result<Self, LayoutError> {
        geometry.validate()?;
        let whole = frame
            .frame_bytes
            .is_multiple_of(geometry.sub_record_bytes());
        if !whole || frame.frame_bytes * frame.frames_per_sub_block != geometry.sub_block_bytes() {
            return Err(LayoutError::Frames(frame));
        }
        if shrunk.len() >= usize::from(u16::MAX) {
            return Err(LayoutError::TooMany(shrunk.len() + 1));
        }
        let mut layout = Self::unshrunk(geometry, frame);
        for formats in shrunk {
            let level = layout.levels.len();
            let placed = place(geometry, frame, level, formats)?;
            layout.levels.push(placed);
        }
        Ok(layout)
    }

    /// What a block takes whose pages have these formats, `[layer * 2 + side]`: whole, and behind a
    /// sliding window.
    pub fn cost(
        geometry: KvGeometry,
        frame: FrameLayout,
        formats: &[FormatId],
    ) -> Result<[PageBytes; 2], LayoutError> {
        let mut layout = Self::unshrunk(geometry, frame);
        if formats.iter().all(|f| *f == FormatId::F16) {
            return Ok(layout.page_bytes(0));
        }
        layout.levels.push(place(geometry, frame, 0, formats)?);
        Ok(layout.page_bytes(1))
    }

    /// What a full block takes at a level: whole, and behind a sliding window.
    pub fn page_bytes(&self, level: u16) -> [PageBytes; 2] {
        let pages = &self.levels[usize::from(level)].record_bytes;
        let heads = self.geometry.kv_heads as u64;
        let kept = pages
            .chunks(2)
            .zip(0..)
            .filter(|(_, layer)| !self.geometry.windowed.contains(*layer));
        let kept: u64 = kept
            .flat_map(|(pages, _)| pages)
            .map(|b| u64::from(*b))
            .sum();
        [
            PageBytes {
                frames: self.frames(level),
                bytes: self.bytes(level),
            },
            PageBytes {
                frames: self.kept_frames(level),
                bytes: kept * heads,
            },
        ]
    }

    /// Level 0 alone, of a geometry and frames that are known to fit each other.
    pub(crate) fn unshrunk(geometry: KvGeometry, frame: FrameLayout) -> Self {
        let pages = geometry.layers * 2;
        let whole = SUB_BLOCKS * geometry.sub_record_bytes();
        let level = Level {
            formats: vec![FormatId::F16; pages],
            places: Vec::new(),
            record_bytes: vec![whole as u32; pages],
            frames: frame.frames_per_block() as u32,
            kept_frames: (geometry.kept_records() * geometry.sub_record_bytes())
                .div_ceil(frame.frame_bytes) as u32
                * SUB_BLOCKS as u32,
        };
        Self {
            geometry,
            frame,
            levels: vec![level],
        }
    }

    /// The model's KV shape.
    pub fn geometry(&self) -> KvGeometry {
        self.geometry
    }

    /// How 16-bit sub-blocks are cut into frames.
    pub fn frame(&self) -> FrameLayout {
        self.frame
    }

    /// Levels there are, level 0 included.
    pub fn levels(&self) -> usize {
        self.levels.len()
    }

    /// Frames of a full block at each level, as the block manager wants them.
    pub fn level_frames(&self) -> Vec<u32> {
        self.levels.iter().map(|p| p.frames).collect()
    }

    /// Frames of a full block. Panics, as all methods below, if there is no such level.
    pub fn frames(&self, level: u16) -> u32 {
        self.levels[usize::from(level)].frames
    }

    /// Frames that a full block keeps behind a sliding window.
    pub fn kept_frames(&self, level: u16) -> u32 {
        self.levels[usize::from(level)].kept_frames
    }

    /// Frames of a 16-bit sub-block that a block keeps behind a sliding window.
    pub fn kept_per_sub_block(&self) -> u32 {
        self.kept_frames(0) / SUB_BLOCKS as u32
    }

    /// Whether frame `index` of a block has pages of layers with a sliding window alone.
    pub fn is_windowed(&self, level: u16, index: usize) -> bool {
        let (index, kept) = match level {
            0 => (
                index % self.frame.frames_per_sub_block,
                self.kept_per_sub_block(),
            ),
            _ => (index, self.kept_frames(level)),
        };
        index >= kept as usize
    }

    /// Formats of all pages, `[layer * 2 + side]`.
    pub fn formats(&self, level: u16) -> &[FormatId] {
        &self.levels[usize::from(level)].formats
    }

    /// Format of one page.
    pub fn format(&self, level: u16, layer: usize, side: Side) -> FormatId {
        self.formats(level)[layer * 2 + side as usize]
    }

    /// Bytes of each record of one page.
    pub fn record_bytes(&self, level: u16, layer: usize, side: Side) -> usize {
        self.levels[usize::from(level)].record_bytes[layer * 2 + side as usize] as usize
    }

    /// Bytes of codes and metadata of a full block, without the unused ends of its frames.
    pub fn bytes(&self, level: u16) -> u64 {
        let pages = &self.levels[usize::from(level)].record_bytes;
        let heads = self.geometry.kv_heads as u64;
        pages.iter().map(|b| u64::from(*b) * heads).sum()
    }

    /// Where a record of a block at level ≥ 1 lies.
    pub fn place(&self, level: u16, record: usize) -> RecordPlace {
        self.levels[usize::from(level)].places[record]
    }
}

fn place(
    geometry: KvGeometry,
    frame: FrameLayout,
    level: usize,
    formats: &[FormatId],
) -> Result<Level, LayoutError> {
    let pages = geometry.layers * 2;
    if formats.len() != pages {
        return Err(LayoutError::Pages {
            level,
            given: formats.len(),
            pages,
        });
    }
    let mut record_bytes = Vec::with_capacity(pages);
    for (page, &format) in formats.iter().enumerate() {
        let side = Side::of_page(page);
        let shape = RecordShape {
            side,
            head_dim: geometry.head_dim,
        };
        let bytes = format
            .record_bytes(shape)
            .map_err(|error| LayoutError::Format {
                level,
                layer: page / 2,
                side,
                error,
            })?;
        if bytes > frame.frame_bytes {
            return Err(LayoutError::Record {
                level,
                format,
                bytes,
                frame: frame.frame_bytes,
            });
        }
        debug_assert!(bytes.is_multiple_of(RECORD_ALIGN));
        record_bytes.push(bytes as u32);
    }
    let page_bytes = |page: usize| record_bytes[page] as usize * geometry.kv_heads;
    let is_windowed = |page: usize| geometry.windowed.contains(page / 2);
    let mut order: Vec<usize> = (0..pages).collect();
    order.sort_by_key(|page| (is_windowed(*page), formats[*page] != FormatId::F16));
    let kept = order.partition_point(|page| !is_windowed(*page));
    let kept_end: usize = order[..kept].iter().map(|page| page_bytes(*page)).sum();
    let kept_frames = kept_end.div_ceil(frame.frame_bytes);
    let (mut starts, mut end) = (vec![0; pages], 0_usize);
    for (index, page) in order.into_iter().enumerate() {
        if index == kept {
            // So that 16 rows of 16 bit do not lie in two frames, and there is something to give
            // back.
            end = end.next_multiple_of(geometry.sub_record_bytes());
            let windowed: usize = (0..pages).filter(|p| is_windowed(*p)).map(page_bytes).sum();
            if end + windowed <= kept_frames * frame.frame_bytes {
                end = kept_frames * frame.frame_bytes;
            }
        }
        starts[page] = end;
        end += page_bytes(page);
    }
    let places = (0..geometry.records()).map(|record| {
        let (layer, side, head) = geometry.of_record(record);
        let page = layer * 2 + side as usize;
        let bytes = record_bytes[page] as usize;
        let start = starts[page] + head * bytes;
        let offset = start % frame.frame_bytes;
        RecordPlace {
            frame: (start / frame.frame_bytes) as u32,
            offset: offset as u32,
            first_part: bytes.min(frame.frame_bytes - offset) as u32,
        }
    });
    let places = places.collect();
    Ok(Level {
        formats: formats.to_vec(),
        places,
        record_bytes,
        frames: end.div_ceil(frame.frame_bytes) as u32,
        kept_frames: kept_frames as u32,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::WindowedLayers;
    use FormatId as F;

    const SMOL: KvGeometry = KvGeometry {
        layers: 30,
        kv_heads: 3,
        head_dim: 64,
        windowed: crate::kv::WindowedLayers::NONE,
    };

    fn pages(layers: usize, k: F, v: F) -> Vec<F> {
        [k, v].repeat(layers)
    }

    #[test]
    fn records_follow_each_other_in_order_aligned_and_in_two_parts_at_most() {
        for (layers, kv_heads, head_dim) in [(30, 3, 64), (4, 2, 128), (32, 8, 128), (5, 1, 64)] {
            let geometry = KvGeometry {
                layers,
                kv_heads,
                head_dim,
                windowed: crate::kv::WindowedLayers::NONE,
            };
            let mut shrunk: Vec<Vec<F>> = F::ALL
                .iter()
                .flat_map(|k| F::ALL.iter().map(|v| (*k, *v)))
                .filter(|(k, v)| k.is_legal(Side::K) && v.is_legal(Side::V))
                .map(|(k, v)| pages(layers, k, v))
                .collect();
            let mut mixed = pages(layers, F::Kitty25, F::Int2);
            mixed[2] = F::F16;
            mixed[5] = F::Int8;
            shrunk.push(mixed);
            let layout = KvLayout::new(geometry, geometry.frame_layout(), &shrunk).unwrap();
            assert_eq!(layout.levels(), shrunk.len() + 1);
            for level in 1..layout.levels() as u16 {
                let frame_bytes = layout.frame().frame_bytes;
                let mut end = 0;
                let is_coded = |page: &usize| layout.formats(level)[*page] != F::F16;
                let mut pages: Vec<usize> = (0..2 * layers).collect();
                pages.sort_by_key(is_coded);
                for page in pages {
                    let (layer, side) = (page / 2, Side::of_page(page));
                    for head in 0..kv_heads {
                        let place = layout.place(level, geometry.record(layer, side, head));
                        let size = layout.record_bytes(level, layer, side);
                        let offset = place.offset as usize;
                        let align = match is_coded(&page) {
                            true => RECORD_ALIGN,
                            false => geometry.sub_record_bytes(),
                        };
                        assert_eq!(offset % align, 0);
                        assert_eq!(place.first_part as usize % align, 0);
                        assert_eq!(place.frame as usize * frame_bytes + offset, end);
                        let here = place.first_part as usize;
                        assert_eq!(here, size.min(frame_bytes - offset));
                        assert!(here > 0 && size - here < frame_bytes);
                        end += size;
                    }
                }
                assert_eq!(layout.frames(level) as usize, end.div_ceil(frame_bytes));
                let bytes = end as u64;
                assert_eq!(layout.bytes(level), bytes);
            }
        }
    }

    /// gpt-oss-20b, Gemma 3 12B and 1B, a model of windows alone, and small ones.
    fn windowed_shapes() -> [KvGeometry; 6] {
        let shape = |layers: usize, every: usize, kv_heads, head_dim| KvGeometry {
            layers,
            kv_heads,
            head_dim,
            windowed: WindowedLayers::of(
                (0..layers).map(move |layer| (layer % every != every - 1).then_some(128)),
            ),
        };
        [
            shape(24, 2, 8, 64),
            shape(48, 6, 8, 256),
            shape(26, 6, 1, 256),
            shape(32, 100, 8, 128),
            shape(5, 3, 1, 64),
            shape(4, 2, 2, 64),
        ]
    }

    #[test]
    fn layers_with_a_window_lie_in_frames_behind_the_others() {
        for geometry in windowed_shapes() {
            let shrunk = [
                pages(geometry.layers, F::Int8, F::Int8),
                pages(geometry.layers, F::Int4, F::Int2),
                // One page of each kind at 16 bit.
                (0..geometry.layers * 2)
                    .map(|page| if page < 4 { F::F16 } else { F::Int4 })
                    .collect(),
            ];
            let layout = KvLayout::new(geometry, geometry.frame_layout(), &shrunk).unwrap();
            let frame_bytes = layout.frame().frame_bytes;
            for record in 0..geometry.records() {
                let (layer, side, head) = geometry.of_record(record);
                assert_eq!(geometry.record(layer, side, head), record);
                let is_windowed = geometry.windowed.contains(layer);
                assert_eq!(record >= geometry.kept_records(), is_windowed);
                let place = geometry.sub_record_place(layout.frame(), record);
                assert!(is_windowed || !layout.is_windowed(0, place.frame));
                for level in 1..layout.levels() as u16 {
                    let place = layout.place(level, record);
                    let bytes = layout.record_bytes(level, layer, side);
                    let last = place.frame as usize + usize::from(place.first_part < bytes as u32);
                    assert!(is_windowed || !layout.is_windowed(level, last));
                    if layout.format(level, layer, side) == F::F16 {
                        let row = geometry.sub_record_bytes();
                        assert_eq!(place.offset as usize % row, 0, "{geometry:?}");
                    }
                }
            }
            for level in 0..layout.levels() as u16 {
                let frames = 0..layout.frames(level) as usize;
                let kept = frames.filter(|frame| !layout.is_windowed(level, *frame));
                assert_eq!(kept.count(), layout.kept_frames(level) as usize);
                // Something is given back, and little is kept in vain. A sub-block of few records
                // is one frame.
                let [pages, kept] = layout.page_bytes(level);
                let gives = kept.frames < pages.frames;
                assert!(gives || geometry.records() < 16, "{geometry:?} at {level}");
                let held = u64::from(kept.frames) * frame_bytes as u64;
                let in_vain = held - kept.bytes;
                assert!(in_vain < (8 * frame_bytes) as u64);
                if geometry.layers > 5 {
                    assert!(
                        in_vain * 8 < pages.bytes,
                        "{geometry:?} at {level}: {pages:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn frames_of_the_default_model() {
        let shrunk = [
            pages(30, F::Int8, F::Int8),
            pages(30, F::Int4, F::Int2),
            pages(30, F::Kitty25, F::Int2),
            pages(30, F::Int2, F::Int2),
        ];
        let layout = KvLayout::new(SMOL, SMOL.frame_layout(), &shrunk).unwrap();
        assert_eq!(layout.bytes(0), SMOL.block_bytes() as u64);
        assert_eq!(layout.formats(0), &[F::F16; 60]);
        assert_eq!(layout.format(2, 29, Side::K), F::Int4);
        let frames = layout.level_frames();
        assert_eq!(frames[0], 120);
        assert!(frames.is_sorted_by(|a, b| a > b), "{frames:?}");
        // The unused end of the last frame is a small share of the block.
        for (level, frames) in frames.iter().enumerate() {
            let held = u64::from(*frames) * layout.frame().frame_bytes as u64;
            let used = layout.bytes(level as u16);
            assert!(held < used + used / 10, "{level}: {used} of {held}");
        }
    }

    #[test]
    fn what_cannot_be_placed_is_refused_with_the_page_named() {
        let refused = |shrunk: Vec<F>| {
            let layout = KvLayout::new(SMOL, SMOL.frame_layout(), &[shrunk]);
            layout.unwrap_err().to_string()
        };
        assert!(refused(vec![F::Int2; 59]).contains("59 page formats"));
        let wrong = refused(pages(30, F::Int2, F::Kitty25));
        assert!(wrong.contains("layer 0, side V"), "{wrong}");
        // Two records a block: a frame is smaller than a 16-bit record.
        let tiny = KvGeometry {
            layers: 1,
            kv_heads: 1,
            head_dim: 64,
            windowed: crate::kv::WindowedLayers::NONE,
        };
        let error =
            KvLayout::new(tiny, tiny.frame_layout(), &[pages(1, F::F16, F::F16)]).unwrap_err();
        assert!(matches!(error, LayoutError::Record { .. }), "{error}");
    }
}
