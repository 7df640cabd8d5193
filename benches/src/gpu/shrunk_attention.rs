//! `ebb-bench attention`, second part: decode attention over shrunk blocks, on the shapes of the
//! published comparison.

use std::sync::Arc;

use ebb_kernels::backend::{StepInput, TableBuilder};
use ebb_kernels::cuda::probe::{AttentionProbe, ColdL2, ProbeError};
use ebb_kernels::cuda::selftest::Rng;
use ebb_kernels::cuda::{CudaError, Device, StepCapacity};
use ebb_kernels::formats::{FormatId as F, RecordShape};
use ebb_kernels::kv::{FrameLayout, KvGeometry, KvLayout, Side};
use ebb_kernels::{BLOCK_TOKENS, SUB_BLOCK_TOKENS, SUB_BLOCKS};

use super::attention::{HEAD_DIM, Shape};

/// Formats of keys and values that are timed, and their bits: those that blocks come down to, what
/// a schedule may leave at 16 bit beside others, int3, which is static, and polar keys, also
/// static.
const PAIRS: [(F, F, &str); 10] = [
    (F::Int8, F::Int8, "8"),
    (F::Int4, F::Int4, "4"),
    (F::Int4, F::Int2, "4/2"),
    (F::Kitty25, F::Int2, "2.5/2"),
    (F::Kitty12, F::Int2, "2.25/2"),
    (F::Int2, F::Int2, "2"),
    (F::F16, F::F16, "16"),
    (F::Int3, F::Int3, "3"),
    (F::Polar44, F::F16, "4/16"),
    (F::Polar44, F::Int4, "4/4"),
];

/// Those of [`PAIRS`] that are mixed.
const MIXED: usize = 6;

/// The first of [`PAIRS`] that has polar keys, as all after it: layouts without them are read by
/// another kernel.
const POLAR: usize = 8;
const _: () = {
    let mut i = 0;
    while i < PAIRS.len() {
        assert!(matches!(PAIRS[i].0, F::Polar44) == (i >= POLAR));
        i += 1;
    }
};

/// Those of [`PAIRS`] that are timed with several rows of a sequence, too, and the rows.
const DRAFTED: usize = 7;
const ROWS: [usize; 2] = [2, 4];

/// Mixtures that are timed: of all that are not static, and what a server has. And blocks that have
/// not shrunk, by the kernel for those that have, of several rows, too.
const OF_ALL: &str = "of all";
const SERVED: &str = "int4/int4 served";
const UNSHRUNK: &str = "unshrunk";

fn drafted(pair: &str, rows: usize) -> String {
    format!("{pair} q_len {rows}")
}

/// An error if there is a row among those asked for that [`run`] does not have.
pub fn check_rows(asked: &[String]) -> Result<(), String> {
    let mut known = [OF_ALL, SERVED, UNSHRUNK].map(String::from).to_vec();
    known.extend(ROWS.map(|rows| drafted(UNSHRUNK, rows)));
    for (i, (k, v, _)) in PAIRS.iter().enumerate() {
        let pair = format!("{k}/{v}");
        if i < DRAFTED {
            known.extend(ROWS.map(|rows| drafted(&pair, rows)));
        }
        known.push(pair);
    }
    match asked.iter().find(|a| !known.contains(a)) {
        None => Ok(()),
        Some(row) => {
            known.sort();
            Err(format!(
                "there is no row `{row}`; there are {}",
                known.join(", ")
            ))
        }
    }
}

/// A pool whose blocks hold the same random page each.
struct Pool {
    layout: KvLayout,
    /// Of each position, one block.
    images: Vec<Vec<u8>>,
}

impl Pool {
    fn new(shape: &Shape, pairs: &[(F, F, &str)]) -> Result<Self, CudaError> {
        let unsupported = |e: String| CudaError::Unsupported(e);
        // One layer of a model: its records lie together, as in a model whose frames hold whole
        // layers. A frame has room for a 16-bit record of a shrunk block, which takes that of eight
        // sub-records: with one KV head there are more layers.
        let geometry = KvGeometry {
            layers: (SUB_BLOCKS / 2).div_ceil(shape.kv_heads),
            kv_heads: shape.kv_heads,
            head_dim: HEAD_DIM,
            windowed: ebb_kernels::kv::WindowedLayers::NONE,
        };
        let frame = FrameLayout {
            frame_bytes: geometry.sub_block_bytes(),
            frames_per_sub_block: 1,
        };
        let of_level = |(k, v, _): &(F, F, &str)| [*k, *v].repeat(geometry.layers);
        let pages: Vec<_> = pairs.iter().map(of_level).collect();
        let layout =
            KvLayout::new(geometry, frame, &pages).map_err(|e| unsupported(e.to_string()))?;
        let mut images = vec![vec![0; frame.frame_bytes * layout.frames(0) as usize]];
        let mut rng = Rng(3);
        for position in 1..layout.levels() as u16 {
            let mut image = vec![0; frame.frame_bytes * layout.frames(position) as usize];
            for record in 0..geometry.records() {
                let page = record / geometry.kv_heads;
                let (layer, side) = (page / 2, Side::of_page(page));
                let shape = RecordShape {
                    side,
                    head_dim: HEAD_DIM,
                };
                let rows = rng.values(BLOCK_TOKENS * HEAD_DIM, 1.0);
                let place = layout.place(position, record);
                let start = place.frame as usize * frame.frame_bytes + place.offset as usize;
                let bytes = layout.record_bytes(position, layer, side);
                // A record's second part begins the next frame: in the image it follows.
                layout
                    .format(position, layer, side)
                    .encode(shape, &rows, &mut image[start..start + bytes])
                    .map_err(|e| unsupported(e.to_string()))?;
            }
            images.push(image);
        }
        Ok(Self { layout, images })
    }

    /// Equal sequences whose blocks stand at `position(block)`, and an open block with `open`
    /// tokens, of which the last `rows` are new. The step describes their block tables; with it,
    /// the bytes of a pool for them.
    fn step(
        &self,
        shape: &Shape,
        (rows, open): (usize, usize),
        position: impl Fn(usize) -> u16,
    ) -> (StepInput, Vec<u8>) {
        let blocks = shape.tokens / BLOCK_TOKENS;
        let frames_of = |block: usize| {
            if block < blocks {
                return self.layout.frames(position(block)) as usize;
            }
            let sub_block = self.layout.frames(0) as usize / (BLOCK_TOKENS / SUB_BLOCK_TOKENS);
            open.div_ceil(SUB_BLOCK_TOKENS) * sub_block
        };
        let count = shape.batch * (0..=blocks).map(frames_of).sum::<usize>();
        let mut frames: Vec<u32> = (0..count as u32).collect();
        Rng(5).shuffle(&mut frames);
        let mut frames = &frames[..];
        let each = self.layout.frame().frame_bytes;
        let mut pool = vec![0; count * each];
        let (mut input, mut tables) = (StepInput::default(), TableBuilder::default());
        for seq in 0..shape.batch as u32 {
            input.push_seq(seq, (shape.tokens + open - rows) as u32, &vec![0; rows]);
            for block in 0..=blocks {
                let at = if block < blocks { position(block) } else { 0 };
                let own = frames.split_off(..frames_of(block)).unwrap_or(&[]);
                tables.set(seq, block, at, own);
                let image = self.images[usize::from(at)].chunks_exact(each);
                for (frame, bytes) in own.iter().zip(image) {
                    pool[*frame as usize * each..][..each].copy_from_slice(bytes);
                }
            }
        }
        tables.take_deltas(&mut input.deltas);
        (input, pool)
    }

    fn time(
        &self,
        device: &Arc<Device>,
        shape: &Shape,
        (rows, open): (usize, usize),
        position: impl Fn(usize) -> u16,
        (repeats, cold): (usize, ColdL2),
    ) -> Result<(f64, f64), ProbeError> {
        let (input, pool) = self.step(shape, (rows, open), &position);
        let frames = (pool.len() / self.layout.frame().frame_bytes) as u32;
        let capacity = StepCapacity {
            rows: shape.batch * rows,
            seqs: shape.batch,
            blocks: shape.batch * (shape.tokens / BLOCK_TOKENS + 1),
        };
        let mut probe = AttentionProbe::with_pages(
            device,
            &self.layout,
            frames,
            shape.q_heads,
            rows,
            capacity,
        )?;
        probe.fill_random(2)?;
        probe.arena_mut().write_all(&pool)?;
        probe.load(&input)?;
        let times = probe.time(0, repeats, cold)?;
        let sealed = (0..shape.tokens / BLOCK_TOKENS).map(|b| self.layout.bytes(position(b)));
        let open = (open - rows) as u64 * self.layout.bytes(0) / BLOCK_TOKENS as u64;
        let layers = self.layout.geometry().layers as f64;
        let bytes = shape.batch as f64 * (sealed.sum::<u64>() + open) as f64 / layers;
        Ok((times[times.len() / 2], bytes))
    }
}

/// Prints lines of the CSV of [`super::attention::run`]: one per pair of formats and number of
/// rows, one for a mixture of those that are not static, one for what a server has, and one per
/// number of rows for blocks that have not shrunk; only those in `only`, if there are any.
pub fn run(
    device: &Arc<Device>,
    shapes: &[Shape],
    only: &[String],
    repeats: usize,
    cold: ColdL2,
) -> Result<(), ProbeError> {
    let runs = (repeats, cold);
    let wanted = |kernel: &str| only.is_empty() || only.iter().any(|o| o == kernel);
    for shape in shapes {
        let codes = Pool::new(shape, &PAIRS[..POLAR])?;
        let polar = Pool::new(shape, &PAIRS[POLAR..])?;
        let time =
            |pool: &Pool, kernel: &str, bits: &str, rows, position: &dyn Fn(usize) -> u16| {
                if !wanted(kernel) {
                    return Ok(());
                }
                let (us, bytes) = pool.time(device, shape, rows, position, runs)?;
                println!(
                    "ebb,mixed {kernel},{bits},{},{},{},{},{HEAD_DIM},{us:.1},{:.0}",
                    shape.batch,
                    shape.tokens,
                    shape.q_heads,
                    shape.kv_heads,
                    bytes / us / 1e3
                );
                Ok::<_, ProbeError>(())
            };
        for (i, (k, v, bits)) in PAIRS.into_iter().enumerate() {
            let (pool, first) = match i < POLAR {
                true => (&codes, 0),
                false => (&polar, POLAR),
            };
            let position = |_| (i - first) as u16 + 1;
            time(pool, &format!("{k}/{v}"), bits, (1, 1), &position)?;
            if i >= DRAFTED {
                continue;
            }
            for rows in ROWS {
                let kernel = drafted(&format!("{k}/{v}"), rows);
                time(pool, &kernel, bits, (rows, rows), &position)?;
            }
        }
        let any = |block: usize| (block % MIXED) as u16 + 1;
        time(&codes, OF_ALL, "mixed", (1, 1), &any)?;
        // As a server has it whose blocks go down to 4 bit: the first and the last that is full at
        // 8, half an open one at 16.
        let last = shape.tokens / BLOCK_TOKENS - 1;
        let served = |block: usize| if block == 0 || block == last { 1 } else { 2 };
        time(&codes, SERVED, "mixed", (1, BLOCK_TOKENS / 2), &served)?;
        time(&codes, UNSHRUNK, "16", (1, 1), &|_| 0)?;
        for rows in ROWS {
            time(&codes, &drafted(UNSHRUNK, rows), "16", (rows, rows), &|_| 0)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::attention::shapes;
    use super::*;

    /// One KV head, too, whose records would not fit into the frames of one layer.
    #[test]
    fn every_shape_has_a_pool_of_all_formats() {
        for shape in shapes(&[]).unwrap() {
            for pairs in [&PAIRS[..POLAR], &PAIRS[POLAR..]] {
                let pool = Pool::new(&shape, pairs).unwrap();
                assert_eq!(pool.images.len(), 1 + pairs.len());
                let kv_heads = pool.layout.geometry().kv_heads;
                assert_eq!(kv_heads, shape.kv_heads);
                // Bits an element of a layer, without the unused ends of frames.
                let elements = pool.layout.geometry().block_bytes() as f64 / 2.0;
                let bits = |position| pool.layout.bytes(position) as f64 * 8.0 / elements;
                assert_eq!(bits(0), 16.0);
                let first = if pairs[0].0 == F::Int8 { 8.25 } else { 10.125 };
                assert_eq!(bits(1), first, "{shape:?}");
            }
        }
    }

    #[test]
    fn sixteen_bit_rows_are_timed_with_drafts() {
        let asked = ["f16/f16 q_len 4", "unshrunk q_len 4", "int2/int2 q_len 2"];
        assert_eq!(check_rows(&asked.map(String::from)), Ok(()));
        assert!(check_rows(&["int3/int3 q_len 4".to_owned()]).is_err());
        assert!(PAIRS[..MIXED].iter().all(|(k, _, _)| *k != F::F16));
    }
}
