//! Matrix products through cuBLASLt, with a plan per shape.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

use cudarc::cublaslt::sys::{self, cublasStatus_t};

use super::device::Device;
use super::memory::DeviceBuffer;
use super::stream::{Event, Stream};
use crate::cuda::error::CudaError;
use crate::cuda::params::{DevicePtr, GemmShape};

/// Scratch that the library may use; the size NVIDIA advises for Hopper.
const WORKSPACE_BYTES: usize = 32 << 20;
/// Algorithms asked of the heuristic for each shape.
const CANDIDATES: usize = 8;
/// `CUBLAS_OP_T`, an enumerator of the library's C header.
const TRANSPOSE: i32 = 1;
/// Rows that the algorithms of batch-invariant mode are chosen for.
const ANCHOR_ROWS: usize = 128;
/// Timed runs of each when tuning, over all weights one after the other: events tell half a
/// microsecond, a thirtieth of a small product.
const TUNING_RUNS: usize = 5;

/// A shape's descriptors and algorithms, the best first.
#[derive(Debug)]
struct Plan {
    operation: sys::cublasLtMatmulDesc_t,
    /// Weights, inputs, outputs.
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algorithms: Vec<sys::cublasLtMatmulAlgo_t>,
}

/// The library, its workspace and the plans made so far.
#[derive(Debug)]
pub(in crate::cuda) struct Gemm {
    handle: sys::cublasLtHandle_t,
    workspace: DeviceBuffer<u8>,
    plans: HashMap<GemmShape, Plan>,
    /// Of eight-bit floats.
    fp8_plans: HashMap<GemmShape, Plan>,
    /// The one algorithm of a matrix of weights, for any number of rows; in batch-invariant mode.
    fixed: Option<HashMap<GemmShape, sys::cublasLtMatmulAlgo_t>>,
}

// SAFETY: the handle may be used from any thread, by one at a time.
unsafe impl Send for Gemm {}

pub(super) fn check(operation: &str, status: cublasStatus_t) -> Result<(), CudaError> {
    match status {
        cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
        status => Err(CudaError::Blas {
            operation: operation.into(),
            status: format!("{status:?}"),
        }),
    }
}

impl Gemm {
    /// What `new` allocates on the device.
    pub(in crate::cuda) const WORKSPACE_BYTES: usize = WORKSPACE_BYTES;

    /// `invariant`: a row's results do not depend on how many rows there are.
    pub(in crate::cuda) fn new(device: &Arc<Device>, invariant: bool) -> Result<Self, CudaError> {
        // SAFETY: only tries to open the library.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoLibrary {
                library: "libcublasLt.so.13",
            });
        }
        let workspace =
            DeviceBuffer::new(device, WORKSPACE_BYTES, "the workspace of matrix products")?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the library is present and the out-pointer valid.
        check("cublasLtCreate", unsafe {
            sys::cublasLtCreate(&mut handle)
        })?;
        Ok(Self {
            handle,
            workspace,
            plans: HashMap::new(),
            fp8_plans: HashMap::new(),
            fixed: invariant.then(HashMap::new),
        })
    }

    /// Makes the plan of a shape, so that running it allocates nothing and asks nobody.
    pub(in crate::cuda) fn prepare(&mut self, shape: GemmShape) -> Result<(), CudaError> {
        if !self.plans.contains_key(&shape) {
            let mut plan = Plan::new(shape, NARROW)?;
            if let Some(algorithm) = self.fixed_algorithm(shape)? {
                plan.check(self.handle, &algorithm, shape)?;
                plan.algorithms = vec![algorithm];
            } else {
                plan.find(self.handle, shape, true)?;
            }
            self.plans.insert(shape, plan);
        }
        Ok(())
    }

    /// The algorithm that computes this product whatever the rows, in batch-invariant mode. It does
    /// not divide the inputs, so every output is summed in one order.
    fn fixed_algorithm(
        &mut self,
        shape: GemmShape,
    ) -> Result<Option<sys::cublasLtMatmulAlgo_t>, CudaError> {
        let Some(fixed) = &mut self.fixed else {
            return Ok(None);
        };
        let anchor = GemmShape {
            rows: ANCHOR_ROWS,
            ..shape
        };
        if let Some(algorithm) = fixed.get(&anchor) {
            return Ok(Some(*algorithm));
        }
        let mut plan = Plan::new(anchor, NARROW)?;
        plan.find(self.handle, anchor, false)?;
        fixed.insert(anchor, plan.algorithms[0]);
        Ok(Some(plan.algorithms[0]))
    }

    /// Times the algorithms of a shape on real weights (several, so that none is in the cache) and
    /// keeps the fastest first.
    ///
    /// # Safety
    /// As for [`Gemm::run`], for each of the weights; `y` is overwritten.
    pub(in crate::cuda) unsafe fn tune(
        &mut self,
        stream: &Stream,
        shape: GemmShape,
        x: DevicePtr,
        weights: &[DevicePtr],
        y: DevicePtr,
    ) -> Result<(), CudaError> {
        self.prepare(shape)?;
        let Some(plan) = self.plans.get(&shape) else {
            return Ok(());
        };
        let mut timed = Vec::with_capacity(plan.algorithms.len());
        let (start, end) = (Event::new(stream.device())?, Event::new(stream.device())?);
        for algorithm in &plan.algorithms {
            let mut best = f64::INFINITY;
            for _ in 0..TUNING_RUNS {
                start.record(stream)?;
                for &w in weights {
                    // SAFETY: the caller's.
                    unsafe { self.enqueue(plan, algorithm, stream, x, w, y)? };
                }
                end.record(stream)?;
                stream.synchronize()?;
                best = best.min(end.micros_since(&start)?);
            }
            timed.push((best, *algorithm));
        }
        timed.sort_by(|a, b| a.0.total_cmp(&b.0));
        if let Some(plan) = self.plans.get_mut(&shape) {
            plan.algorithms = timed.into_iter().map(|t| t.1).collect();
        }
        Ok(())
    }

    /// Enqueues `y = x · wᵀ`: `x` `[rows][inputs]` and `w` `[outputs][inputs]` bf16, `y`
    /// `[rows][outputs]` bf16 or f32.
    ///
    /// # Safety
    /// The addresses must hold matrices of that shape until the stream has run this, and `y` must
    /// overlap neither input.
    pub(in crate::cuda) unsafe fn run(
        &mut self,
        stream: &Stream,
        shape: GemmShape,
        x: DevicePtr,
        w: DevicePtr,
        y: DevicePtr,
    ) -> Result<(), CudaError> {
        self.prepare(shape)?;
        let plan = &self.plans[&shape];
        // SAFETY: the caller's.
        unsafe { self.enqueue(plan, &plan.algorithms[0], stream, x, w, y) }
    }

    /// Enqueues `y = x · wᵀ` of E4M3 with a scale for each row of `x` and of `w`: outputs are bf16.
    /// Inputs and outputs are multiples of 16.
    ///
    /// # Safety
    /// As for [`Gemm::run`]; the scales are `[rows]` and `[outputs]` f32.
    pub(in crate::cuda) unsafe fn run_fp8(
        &mut self,
        stream: &Stream,
        shape: GemmShape,
        [x, x_scales]: [DevicePtr; 2],
        [w, w_scales]: [DevicePtr; 2],
        y: DevicePtr,
    ) -> Result<(), CudaError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        if !self.fp8_plans.contains_key(&shape) {
            let mut plan = Plan::new(shape, sys::cudaDataType::CUDA_R_8F_E4M3)?;
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, SCALE_EACH_ROW)?;
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, SCALE_EACH_ROW)?;
            // Sums stay in the tensor cores' own accumulators, whose relative error is 3e-3 over
            // 14,336 inputs; moving them to f32 now and then takes 6 % of a prompt of 8,192.
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM, 1i8)?;
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, w_scales)?;
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x_scales)?;
            plan.find(self.handle, shape, true)?;
            self.fp8_plans.insert(shape, plan);
        }
        let plan = &self.fp8_plans[&shape];
        plan.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, w_scales)?;
        plan.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x_scales)?;
        // SAFETY: the caller's.
        unsafe { self.enqueue(plan, &plan.algorithms[0], stream, x, w, y) }
    }

    /// # Safety
    /// As for [`Gemm::run`].
    unsafe fn enqueue(
        &self,
        plan: &Plan,
        algorithm: &sys::cublasLtMatmulAlgo_t,
        stream: &Stream,
        x: DevicePtr,
        w: DevicePtr,
        y: DevicePtr,
    ) -> Result<(), CudaError> {
        let (one, zero) = (1f32, 0f32);
        let [weights, inputs, outputs] = plan.layouts;
        // SAFETY: the descriptors live as long as the plan; scalars are read during the call; the
        // matrices are the caller's; the workspace is used by one stream only.
        let status = unsafe {
            sys::cublasLtMatmul(
                self.handle,
                plan.operation,
                std::ptr::from_ref(&one).cast(),
                w as *const c_void,
                weights,
                x as *const c_void,
                inputs,
                std::ptr::from_ref(&zero).cast(),
                y as *const c_void,
                outputs,
                y as *mut c_void,
                outputs,
                algorithm,
                self.workspace.ptr() as *mut c_void,
                self.workspace.len(),
                stream.raw().cast(),
            )
        };
        check("enqueueing a matrix product", status)
    }
}

/// The type of weights, inputs and outputs.
const NARROW: sys::cudaDataType = sys::cudaDataType::CUDA_R_16BF;
/// `CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F`: a scale for each row.
const SCALE_EACH_ROW: i32 = 3;

impl Plan {
    /// Of weights and inputs of one type.
    fn new(shape: GemmShape, operands: sys::cudaDataType) -> Result<Self, CudaError> {
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let single = sys::cudaDataType::CUDA_R_32F;
        let out_type = if shape.wide { single } else { NARROW };
        let (rows, inputs, outputs) =
            (shape.rows as u64, shape.inputs as u64, shape.outputs as u64);
        // The library counts columns first: row-major [rows][inputs] is its (inputs x rows).
        let layouts = [
            layout(operands, inputs, outputs)?,
            layout(operands, inputs, rows)?,
            layout(out_type, outputs, rows)?,
        ];
        let mut operation = std::ptr::null_mut();
        // SAFETY: a valid out-pointer; what is created is destroyed in `drop`.
        check("cublasLtMatmulDescCreate", unsafe {
            sys::cublasLtMatmulDescCreate(&mut operation, compute, single)
        })?;
        let plan = Self {
            operation,
            layouts,
            algorithms: Vec::new(),
        };
        let transposed = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA;
        plan.set(transposed, TRANSPOSE)?;
        Ok(plan)
    }

    /// Sets an attribute of the operation, of the type that the library expects.
    fn set<T: Copy>(
        &self,
        attribute: sys::cublasLtMatmulDescAttributes_t,
        value: T,
    ) -> Result<(), CudaError> {
        // SAFETY: the descriptor lives as long as the plan; the value is read during the call.
        check("cublasLtMatmulDescSetAttribute", unsafe {
            sys::cublasLtMatmulDescSetAttribute(
                self.operation,
                attribute,
                std::ptr::from_ref(&value).cast(),
                size_of::<T>(),
            )
        })
    }

    /// Asks the library for algorithms; `divided`: also those that divide the inputs and add up
    /// afterwards.
    fn find(
        &mut self,
        handle: sys::cublasLtHandle_t,
        shape: GemmShape,
        divided: bool,
    ) -> Result<(), CudaError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        let what = || format!("planning a matrix product {shape:?}");
        // SAFETY: valid out-pointers and attributes of the size the library expects; the preference
        // is destroyed here.
        unsafe {
            let mut preference = std::ptr::null_mut();
            check(
                "cublasLtMatmulPreferenceCreate",
                sys::cublasLtMatmulPreferenceCreate(&mut preference),
            )?;
            let bytes = WORKSPACE_BYTES;
            let mut set = sys::cublasLtMatmulPreferenceSetAttribute(
                preference,
                Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                std::ptr::from_ref(&bytes).cast(),
                size_of::<usize>(),
            );
            if !divided && set == cublasStatus_t::CUBLAS_STATUS_SUCCESS {
                let schemes = 0u32; // CUBLASLT_REDUCTION_SCHEME_NONE alone
                set = sys::cublasLtMatmulPreferenceSetAttribute(
                    preference,
                    Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                    std::ptr::from_ref(&schemes).cast(),
                    size_of::<u32>(),
                );
            }
            let mut found: [sys::cublasLtMatmulHeuristicResult_t; CANDIDATES] = std::mem::zeroed();
            let mut count = 0;
            let [weights, inputs, outputs] = self.layouts;
            let asked = sys::cublasLtMatmulAlgoGetHeuristic(
                handle,
                self.operation,
                weights,
                inputs,
                outputs,
                outputs,
                preference,
                CANDIDATES as i32,
                found.as_mut_ptr(),
                &mut count,
            );
            let _ = sys::cublasLtMatmulPreferenceDestroy(preference);
            check(&what(), set)?;
            check(&what(), asked)?;
            self.algorithms = found[..count.max(0) as usize]
                .iter()
                .map(|f| f.algo)
                .collect();
        }
        if self.algorithms.is_empty() {
            return Err(CudaError::Blas {
                operation: what(),
                status: "no algorithm".into(),
            });
        }
        Ok(())
    }

    /// Whether an algorithm found for other rows can run this shape.
    fn check(
        &self,
        handle: sys::cublasLtHandle_t,
        algorithm: &sys::cublasLtMatmulAlgo_t,
        shape: GemmShape,
    ) -> Result<(), CudaError> {
        let [weights, inputs, outputs] = self.layouts;
        // SAFETY: the descriptors live as long as the plan, and the result is only written.
        let status = unsafe {
            let mut result = std::mem::zeroed();
            sys::cublasLtMatmulAlgoCheck(
                handle,
                self.operation,
                weights,
                inputs,
                outputs,
                outputs,
                algorithm,
                &mut result,
            )
        };
        check(
            &format!("using one algorithm for all rows of a matrix product {shape:?}"),
            status,
        )
    }
}

fn layout(
    kind: sys::cudaDataType,
    rows: u64,
    columns: u64,
) -> Result<sys::cublasLtMatrixLayout_t, CudaError> {
    let mut layout = std::ptr::null_mut();
    // SAFETY: valid out-pointer.
    check("cublasLtMatrixLayoutCreate", unsafe {
        sys::cublasLtMatrixLayoutCreate(&mut layout, kind, rows, columns, rows as i64)
    })?;
    Ok(layout)
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe {
            let _ = sys::cublasLtMatmulDescDestroy(self.operation);
            for layout in self.layouts {
                let _ = sys::cublasLtMatrixLayoutDestroy(layout);
            }
        }
    }
}

impl Drop for Gemm {
    fn drop(&mut self) {
        self.plans.clear();
        self.fp8_plans.clear();
        // SAFETY: created once, destroyed once.
        let _ = unsafe { sys::cublasLtDestroy(self.handle) };
    }
}
