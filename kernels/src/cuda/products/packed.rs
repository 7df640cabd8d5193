//! Products of packed weights.

use std::collections::HashMap;
use std::sync::Arc;

use half::bf16;

use super::SKINNY_ROWS;
use super::streamed::StreamKernels;
use crate::cuda::driver::{Device, DeviceBuffer, Kernel, Stream};
use crate::cuda::error::CudaError;
use crate::cuda::packed::{CHUNK_INPUTS, DeviceFormat, PackedPart};
use crate::cuda::params::{DevicePtr, GemmShape, KernelParams};

/// Most rows that packed weights are streamed for, 128 at a time: beyond, making bf16 of them costs
/// less than reading them once more. (4-bit integers of a layer of Llama-3.1-8B's shape on an H100:
/// 297 us for 256 rows and 550 for 512, of bf16 made of them 433 and 513.)
pub(super) const PACKED_ROWS: usize = 384;
/// Slices of a CTA that unpacks.
const UNPACK_SLICES: usize = 8;
/// Threads of a CTA of either kernel here.
const THREADS: u32 = 256;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct UnpackParams {
    packed: DevicePtr,
    factors: DevicePtr,
    w: DevicePtr,
    inputs: u32,
    outputs: u32,
    gated: u32,
    reserved: u32,
}
// SAFETY: field for field `ebb::UnpackParams` of product/unpack.cu.
unsafe impl KernelParams for UnpackParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct SkinnyPackedParams {
    x: DevicePtr,
    packed: DevicePtr,
    factors: DevicePtr,
    y: DevicePtr,
    rows: u32,
    inputs: u32,
    outputs: u32,
    stride: u32,
    wide: u32,
    gated: u32,
}
// SAFETY: field for field `ebb::SkinnyPackedParams` of product/skinny_packed.cu.
unsafe impl KernelParams for SkinnyPackedParams {}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct QuantiseFp8Params {
    x: DevicePtr,
    y: DevicePtr,
    scales: DevicePtr,
    inputs: u32,
    reserved: u32,
}
// SAFETY: field for field `ebb::QuantiseFp8Params` of product/fp8_operands.cu.
unsafe impl KernelParams for QuantiseFp8Params {}

/// Operands of a product of eight-bit floats, each with its scales.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fp8Operands {
    pub(super) x: [DevicePtr; 2],
    pub(super) w: [DevicePtr; 2],
}

/// The kernels of a format.
#[derive(Debug)]
struct Kernels {
    /// None on devices that cannot stream.
    streamed: Option<StreamKernels>,
    skinny: Kernel<SkinnyPackedParams>,
    unpack: Kernel<UnpackParams>,
}

/// The kernels of the formats that a model has, and room for unpacked weights.
#[derive(Debug, Default)]
pub(super) struct PackedProducts {
    kernels: HashMap<DeviceFormat, Kernels>,
    unpacked: Option<DeviceBuffer<bf16>>,
    /// None on devices whose tensor cores do not multiply eight-bit floats.
    fp8: Option<Kernel<QuantiseFp8Params>>,
}

impl PackedProducts {
    /// Loads the kernels of `formats`, and makes room to unpack `values` weights at once.
    pub(super) fn new(
        device: &Arc<Device>,
        formats: impl Iterator<Item = DeviceFormat>,
        streams: bool,
        values: usize,
    ) -> Result<Self, CudaError> {
        let mut kernels = HashMap::new();
        for format in formats {
            if kernels.contains_key(&format) {
                continue;
            }
            debug_assert!(format != format.of_experts());
            let names = names(format);
            let streamed = match streams {
                true => Some(StreamKernels::load(device, &names.streamed)?),
                false => None,
            };
            let of_format = Kernels {
                streamed,
                skinny: device.kernel(names.skinny, 0)?,
                unpack: device.kernel(names.unpack, 0)?,
            };
            kernels.insert(format, of_format);
        }
        let unpacked = match values {
            0 => None,
            _ => Some(DeviceBuffer::new(device, values, "unpacked weights")?),
        };
        let capability = device.capability();
        let fp8 = match (capability.major, capability.minor) {
            // Scales for each row and each output are of these devices alone.
            (9, _) => Some(device.kernel("quantise_fp8", 0)?),
            _ => None,
        };
        Ok(Self {
            kernels,
            unpacked,
            fp8,
        })
    }

    fn of(&self, format: DeviceFormat) -> Result<&Kernels, CudaError> {
        let missing = || CudaError::Unsupported(format!("weights of {}", format.title()));
        self.kernels.get(&format).ok_or_else(missing)
    }

    /// The streaming kernels of a format.
    pub(super) fn streamed(&self, format: DeviceFormat) -> Result<&StreamKernels, CudaError> {
        let missing = || CudaError::Unsupported(format!("streaming {}", format.title()));
        self.of(format)?.streamed.as_ref().ok_or_else(missing)
    }

    /// Enqueues `y = x · wᵀ` of up to 8 rows; `y`'s rows are `stride` values apart.
    ///
    /// # Safety
    /// The addresses must hold matrices of the part's shape until the stream has run this.
    pub(super) unsafe fn skinny(
        &self,
        stream: &Stream,
        part: &PackedPart,
        (rows, wide): (usize, bool),
        [x, y]: [DevicePtr; 2],
        stride: usize,
    ) -> Result<(), CudaError> {
        assert!(rows <= SKINNY_ROWS);
        let params = SkinnyPackedParams {
            x,
            packed: part.codes.ptr(),
            factors: part.factors.ptr(),
            y,
            rows: rows as u32,
            inputs: part.inputs as u32,
            outputs: part.outputs as u32,
            stride: stride as u32,
            wide: u32::from(wide),
            gated: u32::from(part.gated),
        };
        let grid = (part.slices() as u32, 1);
        let kernel = &self.of(part.format)?.skinny;
        // SAFETY: the caller's.
        unsafe { kernel.launch(stream, grid, THREADS, &params) }
    }

    /// Whether tensor cores multiply eight-bit floats.
    pub(super) fn has_fp8(&self) -> bool {
        self.fp8.is_some()
    }

    /// Whether a product is one that tensor cores can do with eight-bit floats, in the room there
    /// is.
    pub(super) fn can_fp8(&self, parts: &[PackedPart], shape: GemmShape) -> bool {
        let is_aligned = shape.inputs.is_multiple_of(16) && shape.outputs.is_multiple_of(16);
        let [part] = parts else {
            return false;
        };
        let room = self.unpacked.as_ref().map_or(0, DeviceBuffer::bytes);
        self.fp8.is_some()
            && part.format.is_fp8_rows()
            && is_aligned
            && !shape.wide
            && fp8_places(shape)[1] <= room
    }

    /// Enqueues quantising rows of `x`, for a shape that [`PackedProducts::can_fp8`] says so of.
    ///
    /// # Safety
    /// `x` must hold `[rows][inputs]` bf16 until the stream has run this.
    pub(super) unsafe fn fp8_operands(
        &self,
        stream: &Stream,
        part: &PackedPart,
        shape: GemmShape,
        x: DevicePtr,
    ) -> Result<Fp8Operands, CudaError> {
        let (Some(quantise), Some(room)) = (&self.fp8, &self.unpacked) else {
            let what = format!("{shape:?} of eight-bit floats");
            return Err(CudaError::Unsupported(what));
        };
        let [scales, _] = fp8_places(shape);
        let operands = Fp8Operands {
            w: [part.codes.ptr(), part.factors.ptr()],
            x: [room.ptr(), room.ptr() + scales as u64],
        };
        let params = QuantiseFp8Params {
            x,
            y: operands.x[0],
            scales: operands.x[1],
            inputs: shape.inputs as u32,
            reserved: 0,
        };
        let grid = (shape.rows as u32, 1);
        // SAFETY: there is room for the rows and their scales, and `x` is the caller's. Work of one
        // stream runs in order.
        unsafe { quantise.launch(stream, grid, THREADS, &params)? };
        Ok(operands)
    }

    /// Enqueues unpacking parts one behind the other; the address of `[outputs][inputs]` bf16.
    pub(super) fn unpack(
        &self,
        stream: &Stream,
        parts: &[PackedPart],
    ) -> Result<DevicePtr, CudaError> {
        let values: usize = parts.iter().map(|part| part.inputs * part.outputs).sum();
        let room = self.unpacked.as_ref();
        let Some(room) = room.filter(|room| room.len() >= values) else {
            let what = format!("unpacking {values} weights, for which no room was made");
            return Err(CudaError::Unsupported(what));
        };
        let mut first = 0;
        for part in parts {
            let params = UnpackParams {
                packed: part.codes.ptr(),
                factors: part.factors.ptr(),
                w: room.at(first),
                inputs: part.inputs as u32,
                outputs: part.outputs as u32,
                gated: u32::from(part.gated),
                reserved: 0,
            };
            let kernel = &self.of(part.format)?.unpack;
            // SAFETY: the part's buffers have its shape, and there is room for its weights. Work of
            // one stream runs in order.
            unsafe { kernel.launch(stream, unpack_grid(part), THREADS, &params)? };
            first += part.inputs * part.outputs;
        }
        Ok(room.ptr())
    }

    /// What the last unpacking, of these parts, has left.
    pub(super) fn read(&self, parts: &[PackedPart]) -> Result<Vec<bf16>, CudaError> {
        let values = parts.iter().map(|part| part.inputs * part.outputs).sum();
        let mut unpacked = vec![bf16::ZERO; values];
        if let Some(room) = &self.unpacked {
            room.read(0, &mut unpacked)?;
        }
        Ok(unpacked)
    }
}

/// CTAs that take a part's weights out of its chunks, a warp a chunk.
fn unpack_grid(part: &PackedPart) -> (u32, u32) {
    (
        part.slices().div_ceil(UNPACK_SLICES) as u32,
        part.inputs.div_ceil(CHUNK_INPUTS) as u32,
    )
}

/// Bytes from the start of the room to the scales of quantised rows, and to the end.
fn fp8_places(shape: GemmShape) -> [usize; 2] {
    let scales = (shape.rows * shape.inputs).next_multiple_of(256);
    [scales, scales + 4 * shape.rows]
}

struct Names {
    streamed: [&'static str; 5],
    skinny: &'static str,
    unpack: &'static str,
}

/// What the kernels of a format are called.
fn names(format: DeviceFormat) -> Names {
    macro_rules! names {
        ($($name:literal)*) => {
            match format.name() {
                $($name => Names {
                    streamed: [
                        concat!("product_", $name, "_n8"),
                        concat!("product_", $name, "_n16"),
                        concat!("product_", $name, "_n32"),
                        concat!("product_", $name, "_n64"),
                        concat!("product_", $name, "_n128"),
                    ],
                    skinny: concat!("product_skinny_", $name),
                    unpack: concat!("unpack_", $name),
                },)*
                other => unreachable!("{other} has no kernels"),
            }
        };
    }
    names!(
        "int4_1" "int4_2" "int4_4" "int4_8" "fp4_4" "fp4_8"
        "int8_0" "int8_1" "int8_4" "int8_8" "fp8_0" "fp8_1"
    )
}
