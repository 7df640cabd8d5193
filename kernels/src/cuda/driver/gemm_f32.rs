//! Products of f32 matrices, whole or parts of larger ones, through cuBLASLt; for gradients, so no
//! speed is lost on accuracy.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

use cudarc::cublaslt::sys::{self, cublasStatus_t};

use super::device::Device;
use super::gemm::check;
use super::memory::DeviceBuffer;
use super::stream::Stream;
use crate::cuda::error::CudaError;
use crate::cuda::params::{DevicePtr, MatrixLayout, ProductShape};

/// Scratch that the library may use.
const WORKSPACE_BYTES: usize = 32 << 20;
/// `CUBLAS_OP_T`, an enumerator of the library's C header.
const TRANSPOSE: i32 = 1;

/// A shape's descriptors and algorithm.
#[derive(Debug)]
struct Plan {
    operation: sys::cublasLtMatmulDesc_t,
    /// The library counts columns first, so that it sees cᵀ = bᵀ · aᵀ: layouts of b, a and c.
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
}

/// The library, its workspace and the plans made so far.
#[derive(Debug)]
pub(in crate::cuda) struct GemmF32 {
    handle: sys::cublasLtHandle_t,
    workspace: DeviceBuffer<u8>,
    plans: HashMap<ProductShape, Plan>,
}

// SAFETY: the handle may be used from any thread, by one at a time.
unsafe impl Send for GemmF32 {}

impl GemmF32 {
    pub(in crate::cuda) fn new(device: &Arc<Device>) -> Result<Self, CudaError> {
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
        })
    }

    /// Enqueues `c = scale · a · b`, plus what is at `add` if given, which may be `c`.
    ///
    /// # Safety
    /// The addresses must hold such matrices until the stream has run this, and `c` must overlap
    /// neither `a` nor `b`.
    #[allow(clippy::too_many_arguments)]
    pub(in crate::cuda) unsafe fn run(
        &mut self,
        stream: &Stream,
        shape: ProductShape,
        scale: f32,
        a: DevicePtr,
        b: DevicePtr,
        add: Option<DevicePtr>,
        c: DevicePtr,
    ) -> Result<(), CudaError> {
        if !self.plans.contains_key(&shape) {
            let plan = Plan::new(self.handle, shape)?;
            self.plans.insert(shape, plan);
        }
        let plan = &self.plans[&shape];
        let beta = if add.is_some() { 1f32 } else { 0.0 };
        let [layout_b, layout_a, layout_c] = plan.layouts;
        // SAFETY: the descriptors live as long as the plan; scalars are read during the call; the
        // matrices are the caller's; the workspace is used by one stream only.
        let status = unsafe {
            sys::cublasLtMatmul(
                self.handle,
                plan.operation,
                std::ptr::from_ref(&scale).cast(),
                b as *const c_void,
                layout_b,
                a as *const c_void,
                layout_a,
                std::ptr::from_ref(&beta).cast(),
                add.unwrap_or(c) as *const c_void,
                layout_c,
                c as *mut c_void,
                layout_c,
                &plan.algorithm,
                self.workspace.ptr() as *mut c_void,
                self.workspace.len(),
                stream.raw().cast(),
            )
        };
        check("enqueueing a product of f32 matrices", status)
    }
}

impl Plan {
    fn new(handle: sys::cublasLtHandle_t, shape: ProductShape) -> Result<Self, CudaError> {
        let what = || format!("planning a product of f32 matrices {shape:?}");
        let ProductShape {
            rows,
            inner,
            columns,
            batch,
            a,
            b,
            c,
        } = shape;
        let layouts = [
            layout(b, inner, columns, batch)?,
            layout(a, rows, inner, batch)?,
            layout(c, rows, columns, batch)?,
        ];
        // SAFETY: valid out-pointers and attributes of the size the library expects; everything
        // created is destroyed in `drop` or, for the preference, here.
        unsafe {
            let mut plan = Self {
                operation: std::ptr::null_mut(),
                layouts,
                algorithm: std::mem::zeroed(),
            };
            check(
                "cublasLtMatmulDescCreate",
                sys::cublasLtMatmulDescCreate(
                    &mut plan.operation,
                    sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                    sys::cudaDataType::CUDA_R_32F,
                ),
            )?;
            use sys::cublasLtMatmulDescAttributes_t as Attribute;
            for (attribute, lay) in [
                (Attribute::CUBLASLT_MATMUL_DESC_TRANSA, b),
                (Attribute::CUBLASLT_MATMUL_DESC_TRANSB, a),
            ] {
                if lay.transposed {
                    check(
                        "cublasLtMatmulDescSetAttribute",
                        sys::cublasLtMatmulDescSetAttribute(
                            plan.operation,
                            attribute,
                            std::ptr::from_ref(&TRANSPOSE).cast(),
                            size_of_val(&TRANSPOSE),
                        ),
                    )?;
                }
            }
            let mut preference = std::ptr::null_mut();
            check(
                "cublasLtMatmulPreferenceCreate",
                sys::cublasLtMatmulPreferenceCreate(&mut preference),
            )?;
            let bytes = WORKSPACE_BYTES;
            let set = sys::cublasLtMatmulPreferenceSetAttribute(
                preference,
                sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                std::ptr::from_ref(&bytes).cast(),
                size_of::<usize>(),
            );
            let mut found: sys::cublasLtMatmulHeuristicResult_t = std::mem::zeroed();
            let mut count = 0;
            let [layout_b, layout_a, layout_c] = plan.layouts;
            let asked = sys::cublasLtMatmulAlgoGetHeuristic(
                handle,
                plan.operation,
                layout_b,
                layout_a,
                layout_c,
                layout_c,
                preference,
                1,
                &mut found,
                &mut count,
            );
            let _ = sys::cublasLtMatmulPreferenceDestroy(preference);
            check(&what(), set)?;
            check(&what(), asked)?;
            if count == 0 {
                return Err(CudaError::Blas {
                    operation: what(),
                    status: "no algorithm".into(),
                });
            }
            plan.algorithm = found.algo;
            Ok(plan)
        }
    }
}

/// The library's layout of `rows` x `columns` matrices that lie as `lay` says: rows in memory are
/// its columns.
fn layout(
    lay: MatrixLayout,
    rows: usize,
    columns: usize,
    batch: usize,
) -> Result<sys::cublasLtMatrixLayout_t, CudaError> {
    let (count, len) = if lay.transposed {
        (columns, rows)
    } else {
        (rows, columns)
    };
    use sys::cublasLtMatrixLayoutAttribute_t as Attribute;
    let mut layout = std::ptr::null_mut();
    // SAFETY: valid out-pointers and attributes of the sizes that the library expects.
    unsafe {
        check(
            "cublasLtMatrixLayoutCreate",
            sys::cublasLtMatrixLayoutCreate(
                &mut layout,
                sys::cudaDataType::CUDA_R_32F,
                len as u64,
                count as u64,
                lay.row as i64,
            ),
        )?;
        let (batch, apart) = (batch as i32, lay.matrix as i64);
        let batched = sys::cublasLtMatrixLayoutSetAttribute(
            layout,
            Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
            std::ptr::from_ref(&batch).cast(),
            size_of_val(&batch),
        );
        let spaced = sys::cublasLtMatrixLayoutSetAttribute(
            layout,
            Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
            std::ptr::from_ref(&apart).cast(),
            size_of_val(&apart),
        );
        let wrong = [batched, spaced]
            .into_iter()
            .find(|s| *s != cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        if let Some(status) = wrong {
            let _ = sys::cublasLtMatrixLayoutDestroy(layout);
            check("cublasLtMatrixLayoutSetAttribute", status)?;
        }
    }
    Ok(layout)
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe {
            if !self.operation.is_null() {
                let _ = sys::cublasLtMatmulDescDestroy(self.operation);
            }
            for layout in self.layouts {
                let _ = sys::cublasLtMatrixLayoutDestroy(layout);
            }
        }
    }
}

impl Drop for GemmF32 {
    fn drop(&mut self) {
        self.plans.clear();
        // SAFETY: created once, destroyed once.
        let _ = unsafe { sys::cublasLtDestroy(self.handle) };
    }
}
