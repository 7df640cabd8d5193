//! What a backend takes of the device, known before it is started, and which pages it can read.

use super::start::buckets;
use super::{CudaBackend, CudaConfig};
use crate::cuda::driver::Gemm;
use crate::formats::FormatId;
use crate::kv::KvLayout;
use crate::model::{TensorName, TransformerSpec};

/// What the driver rounds large allocations up to.
const GRANULE_BYTES: usize = 2 << 20;

/// Device memory of one recorded step, an upper bound: parameters and driver state of about ten launches a layer.
const GRAPH_LAYER_BYTES: usize = 128 << 10;

/// Bytes of device memory that a backend takes beside the KV pool. All of it is allocated when it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceNeeds {
    /// The weights.
    pub weights: usize,
    /// Activations, step inputs, partial results and the workspace of matrix products.
    pub workspaces: usize,
    /// Recorded steps.
    pub graphs: usize,
}

impl CudaBackend {
    /// What a backend of a valid `spec` takes; `config.frames` does not matter.
    pub fn needs(spec: &TransformerSpec, config: &CudaConfig) -> DeviceNeeds {
        let large = |bytes: usize| bytes.next_multiple_of(GRANULE_BYTES);
        let tensor = |name: TensorName| {
            let bytes = 2 * name.shape(spec).iter().product::<usize>();
            // Small ones share a granule.
            if bytes < GRANULE_BYTES / 2 {
                bytes.next_multiple_of(512)
            } else {
                large(bytes)
            }
        };
        DeviceNeeds {
            weights: large(TensorName::all(spec).into_iter().map(tensor).sum()),
            workspaces: large(Self::overhead_bytes(spec, config) + Gemm::WORKSPACE_BYTES),
            graphs: buckets(config).len() * spec.layers * GRAPH_LAYER_BYTES,
        }
    }

    /// Whether there are kernels for every page of a layout. 16-bit ones only, so far.
    pub fn supports(layout: &KvLayout) -> bool {
        (0..layout.positions() as u16)
            .all(|position| layout.formats(position).iter().all(|f| *f == FormatId::F16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::KvGeometry;

    #[test]
    fn layouts_that_shrink_are_not_supported() {
        let geometry = KvGeometry {
            layers: 2,
            kv_heads: 2,
            head_dim: 64,
        };
        let layout = |shrunk: &[Vec<FormatId>]| {
            KvLayout::new(geometry, geometry.frame_layout(), shrunk).unwrap()
        };
        assert!(CudaBackend::supports(&layout(&[])));
        let mut page = vec![FormatId::F16; 4];
        page[3] = FormatId::Int8;
        assert!(!CudaBackend::supports(&layout(&[page])));
    }
}
