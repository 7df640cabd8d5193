//! What a backend takes of the device, known before it is started, and which pages it can read.

use std::collections::{BTreeMap, HashSet};

use super::start::{RECORDED, buckets, layers_at_once};
use super::{CudaBackend, CudaConfig};
use crate::cuda::codecs::{Codecs, Scratch, supports};
use crate::cuda::driver::{Device, Gemm};
use crate::cuda::products::Products;
use crate::cuda::tables::DeviceTables;
use crate::cuda::weights::{LoadError, PLAIN, PackPlan};
use crate::kv::KvLayout;
use crate::model::{LayerSpec, ModelSpec, TensorName, WeightSource};

/// What the driver rounds large allocations up to.
const GRANULE_BYTES: usize = 2 << 20;

/// Device memory of a layer of one recorded step, an upper bound: parameters and driver state of
/// about ten launches.
const GRAPH_LAYER_BYTES: usize = 128 << 10;

/// The same of what a layer of experts has beside: in place of three launches of an MLP the
/// router's product, routing, sorting, two products and a sum, and three of a shared expert.
const GRAPH_EXPERTS_BYTES: usize = 80 << 10;

/// The same of two norms and the sum of branches, where experts have norms of their own.
const GRAPH_EXPERT_NORMS_BYTES: usize = 40 << 10;

/// Bytes of device memory that a backend takes beside the KV pool. All of it is allocated when it
/// starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceNeeds {
    /// The weights, by what they are.
    pub weights: Vec<(&'static str, usize)>,
    /// Activations, step inputs, partial results and the workspace of matrix products.
    pub workspaces: usize,
    /// Recorded steps.
    pub graphs: usize,
}

impl CudaBackend {
    /// What a backend of a valid `spec` takes for weights of a source. `config.frames` may be an
    /// upper bound: it counts for the tables only.
    ///
    /// # Errors
    /// When the source cannot say what it has.
    pub fn needs<W: WeightSource>(
        device: &Device,
        spec: &ModelSpec,
        config: &CudaConfig,
        weights: &W,
    ) -> Result<DeviceNeeds, LoadError<W::Error>> {
        let plan = match config.expand_weights {
            true => PackPlan::default(),
            false => PackPlan::of_source(spec, weights)?,
        };
        let large = |bytes: usize| bytes.next_multiple_of(GRANULE_BYTES);
        let granules = |bytes: usize| {
            // Small ones share a granule.
            if bytes < GRANULE_BYTES / 2 {
                bytes.next_multiple_of(512)
            } else {
                large(bytes)
            }
        };
        let packed: HashSet<TensorName> = plan.tensors().collect();
        let experts = spec.layers.iter().filter_map(LayerSpec::experts);
        let of_experts = experts.map(|experts| match experts.has_norms() {
            true => GRAPH_EXPERTS_BYTES + GRAPH_EXPERT_NORMS_BYTES,
            false => GRAPH_EXPERTS_BYTES,
        });
        let of_graph = spec.layers.len() * GRAPH_LAYER_BYTES + of_experts.sum::<usize>();
        let plain = TensorName::all(spec).into_iter();
        let plain = plain.filter(|name| !packed.contains(name));
        let plain = plain.map(|name| granules(2 * name.shape(spec).iter().product::<usize>()));
        let mut by_format = BTreeMap::from([(PLAIN, plain.sum())]);
        for (title, bytes) in plan.buffers() {
            *by_format.entry(title).or_insert(0) += granules(bytes);
        }
        let unpacked = Products::packed_bytes(device, config.batch_invariant, plan.values());
        let workspaces = Self::overhead_bytes(device, spec, config) + Gemm::WORKSPACE_BYTES;
        let mut weights: Vec<_> = by_format.into_iter().map(|(t, b)| (t, large(b))).collect();
        weights.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        Ok(DeviceNeeds {
            weights,
            workspaces: large(workspaces + large(unpacked)),
            // With and without sequences that are cut, with and without shrunk blocks.
            graphs: RECORDED.len() * buckets(config).len() * of_graph,
        })
    }

    /// Whether there are kernels for every page of a layout.
    pub fn supports(layout: &KvLayout) -> bool {
        supports(layout)
    }

    /// Bytes that a pool of `frames` frames takes beside its own, for blocks that shrink: scratch
    /// and tables. None if they never do.
    pub fn shrink_bytes(
        spec: &ModelSpec,
        layout: &KvLayout,
        frames: u32,
        config: &CudaConfig,
    ) -> usize {
        if layout.levels() == 1 {
            return 0;
        }
        let scratch = Scratch::of(layout, frames, &config.capacity, layers_at_once(spec));
        scratch.frames() as usize * layout.frame().frame_bytes
            + DeviceTables::scratch_bytes(&scratch.shape)
            + Codecs::bytes(layout, frames, scratch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::FormatId;
    use crate::formats::gpu::Writer;
    use crate::kv::{KvGeometry, Side};

    #[test]
    fn pages_of_every_format_are_supported_at_the_heads_that_have_kernels() {
        let layout = |head_dim, format| {
            let geometry = KvGeometry {
                layers: 2,
                kv_heads: 2,
                head_dim,
                windowed: crate::kv::WindowedLayers::NONE,
            };
            let mut page = vec![FormatId::F16; 4];
            page[2] = format;
            KvLayout::new(geometry, geometry.frame_layout(), &[page]).unwrap()
        };
        for format in FormatId::ALL.iter().filter(|f| f.is_legal(Side::K)) {
            for head_dim in [64, 128] {
                assert!(
                    CudaBackend::supports(&layout(head_dim, *format)),
                    "{format}"
                );
            }
            // Wider heads have those of the ladders.
            assert_eq!(
                CudaBackend::supports(&layout(256, *format)),
                format.gpu_writer() == Writer::Transcode,
                "{format}"
            );
        }
        assert!(!CudaBackend::supports(&layout(96, FormatId::Int8)));
        assert!(!CudaBackend::supports(&layout(32, FormatId::Polar44)));
    }

    #[cfg(feature = "cuda-emulator")]
    #[test]
    fn a_backend_takes_what_it_was_said_to_need_and_no_step_takes_more() {
        use crate::model::{
            ExpertsSpec, GatedDeltaSpec, Mamba2Spec, Mixer, Mlp, OutputGate, QkNorm, RecurrentSpec,
            Rope, Routing, UniformModel,
        };

        let mut spec = UniformModel {
            hidden: 256,
            layers: 2,
            q_heads: 4,
            kv_heads: 2,
            head_dim: 64,
            intermediate: 512,
            vocab: 1000,
            norm_eps: 1e-5,
            rope: Rope::new(vec![1.0; 32], 1.0),
            qkv_bias: true,
            qk_norm: QkNorm::PerHead,
            tied_embeddings: false,
            max_positions: 4096,
            ..UniformModel::default()
        }
        .spec();
        check_needs(&spec, 0);
        let mut experts = spec.clone();
        for layer in &mut experts.layers {
            layer.mlp = Mlp::Experts(ExpertsSpec::plain(8, 2, 256, Routing::SOFTMAX_OF_CHOSEN));
        }
        check_needs(&experts, 0);
        spec.layers[0].attention_mut().output_gate = Some(OutputGate::SIGMOIDS);
        spec.layers[1].mixer = Mixer::Recurrent(RecurrentSpec::GatedDelta(GatedDeltaSpec {
            k_heads: 2,
            v_heads: 4,
            k_dim: 64,
            v_dim: 64,
            taps: 4,
            norm_eps: 1e-6,
            doubled: false,
        }));
        check_needs(&spec, 5);
        spec.layers[1].mixer = Mixer::Recurrent(RecurrentSpec::Mamba2(Mamba2Spec {
            heads: 8,
            head_dim: 32,
            groups: 2,
            state_dim: 32,
            taps: 4,
            conv_bias: true,
            norm_parts: Some(2),
            norm_eps: 1e-6,
            time_steps: [0.0, f32::INFINITY],
        }));
        check_needs(&spec, 5);
    }

    /// The weights of the largest matrix of the layers, but for experts.
    #[cfg(feature = "cuda-emulator")]
    fn largest_linear(spec: &ModelSpec) -> usize {
        use crate::model::ops::{LinearName, Op, forward};
        let linears = forward(spec).into_iter().filter_map(|op| match op {
            Op::Linear { linear, .. } if linear != LinearName::LmHead => Some(linear.shape(spec)),
            _ => None,
        });
        linears
            .map(|(inputs, outputs)| inputs * outputs)
            .max()
            .unwrap_or(0)
    }

    /// Of a model, with so many slots for states.
    #[cfg(feature = "cuda-emulator")]
    fn check_needs(spec: &ModelSpec, states: usize) {
        use crate::backend::{Backend, StepInput};
        use crate::cuda::Device;
        use crate::cuda::selftest::{Pages, Rng};
        use crate::model::RandomWeights;
        use crate::weight_formats::{Quantisation, QuantisedWeights};

        let layout = spec.kv_geometry().frame_layout();
        let tokens = [200, 300, 100];
        let frames = Pages::frames_for(layout, tokens);
        let mut pages = Pages::new(layout, frames, &mut Rng(1));
        pages.add(0, tokens[0]);
        // A sequence with a state begins at its start.
        let before = |tokens: usize| if states > 0 { 0 } else { tokens - 1 };
        pages.add(before(tokens[1]), 1);
        pages.add(before(tokens[2]), 1);
        let capacity = pages.capacity();
        let input = StepInput {
            tokens: vec![7; tokens[0] + 2],
            logit_rows: vec![0, 9, 199, 200, 201],
            ..pages.input
        };
        let config = CudaConfig {
            frames,
            capacity,
            states,
            logit_rows: 4,
            graph_rows_max: 4,
            tune: true,
            batch_invariant: false,
            rotate_k: false,
            rotate_v_online: false,
            scale_k_online: None,
            expand_weights: false,
        };
        let device = Device::open(0).unwrap();
        let taken = || {
            let (free, total) = device.memory().unwrap();
            total - free
        };
        let random = RandomWeights {
            spec: spec.clone(),
            seed: 1,
        };
        let pool = layout.frame_bytes * frames as usize;
        let has_experts = spec.layers.iter().any(|layer| layer.experts().is_some());
        let mut quantisations = vec![None, Some(Quantisation::Fp8), Some(Quantisation::Int4)];
        quantisations.extend(has_experts.then_some(Some(Quantisation::Mxfp4)));
        for quantisation in quantisations {
            let (of, with) = (spec.clone(), config.clone());
            let mut backend = CudaBackend::random(&device, of, with, 1, quantisation).unwrap();
            let at_start = taken();
            let needs = match quantisation {
                Some(quantisation) => {
                    let quantised = QuantisedWeights::new(random.clone(), quantisation);
                    CudaBackend::needs(&device, spec, &config, &quantised).unwrap()
                }
                None => CudaBackend::needs(&device, spec, &config, &random).unwrap(),
            };
            assert_eq!(needs.weights.len(), 1 + usize::from(quantisation.is_some()));
            let weights: usize = needs.weights.iter().map(|(_, bytes)| bytes).sum();
            assert!(at_start <= weights + needs.workspaces + pool);
            // Without what is rounded up: a buffer forgotten, or counted twice, shows.
            let held: usize = backend.weight_bytes().iter().map(|(_, bytes)| bytes).sum();
            let unpacked = match quantisation {
                // Those of experts are never unpacked.
                Some(Quantisation::Mxfp4) => 0,
                Some(_) => 2 * largest_linear(spec),
                None => {
                    let names = TensorName::all(spec).into_iter();
                    let shapes = names.map(|n| n.shape(spec));
                    let values: usize = shapes.map(|s| s.iter().product::<usize>()).sum();
                    assert_eq!(held, 2 * values);
                    0
                }
            };
            let overhead = CudaBackend::overhead_bytes(&device, spec, &config);
            let counted = held + unpacked + overhead + pool;
            assert!(at_start.abs_diff(counted) < 2048, "{at_start} of {counted}");
            backend.step(&input).unwrap();
            assert_eq!(taken(), at_start);
            drop(backend);
            assert_eq!(taken(), 0);
        }
    }
}
