//! Loading against reading tensor by tensor.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::load::{Staging, load};
use super::*;
use crate::model::{Activation, Mlp, RandomWeights, Rope, UniformModel};

fn spec(extras: bool) -> ModelSpec {
    UniformModel {
        hidden: 104,
        layers: 3,
        q_heads: 6,
        kv_heads: 2,
        head_dim: 64,
        intermediate: 136,
        vocab: 331,
        norm_eps: 1e-5,
        rope: Rope::new(vec![1.0; 32], 1.0),
        qkv_bias: extras,
        qk_norm: if extras {
            QkNorm::PerHead
        } else {
            QkNorm::None
        },
        tied_embeddings: !extras,
        max_positions: 512,
        ..UniformModel::default()
    }
    .spec()
}

fn source(extras: bool) -> RandomWeights {
    RandomWeights {
        spec: spec(extras),
        seed: 5,
    }
}

fn read(buffer: &DeviceBuffer<bf16>) -> Vec<bf16> {
    let mut values = vec![bf16::ZERO; buffer.len()];
    buffer.read(0, &mut values).unwrap();
    values
}

/// Every buffer, in load order.
fn buffers(spec: &ModelSpec, weights: &Weights) -> Vec<Vec<bf16>> {
    let mut all = vec![read(weights.embedding())];
    for layer in 0..spec.layers.len() {
        let linear = |name: fn(usize) -> LinearName| weights.named(name(layer));
        let norm = |tensor| read(weights.of_layer(layer, tensor));
        let qkv = linear(LinearName::Qkv);
        all.extend([norm(LayerTensor::AttnNorm), read(qkv.plain().unwrap())]);
        all.extend(qkv.bias().map(read));
        all.extend(weights.qk_norm(layer).map(read));
        all.push(read(linear(LinearName::O).plain().unwrap()));
        all.push(norm(LayerTensor::MlpNorm));
        all.push(read(linear(LinearName::GateUp).plain().unwrap()));
        all.push(read(linear(LinearName::Down).plain().unwrap()));
    }
    let final_norm = weights.vector_index(TensorName::FinalNorm);
    all.push(read(weights.vector(final_norm)));
    if !spec.tied_embeddings {
        all.push(read(weights.named(LinearName::LmHead).plain().unwrap()));
    }
    all
}

#[test]
fn any_number_of_threads_and_any_buffer_load_the_same_bytes() {
    let device = Device::open(0).unwrap();
    for extras in [false, true] {
        let source = source(extras);
        // Laid side by side, the tensors in load order are the buffers in theirs.
        let tensors = TensorName::all(&source.spec)
            .into_iter()
            .flat_map(|name| source.load(name).unwrap());
        let expected: Vec<bf16> = tensors.collect();
        let total = 2 * expected.len() as u64;
        for (threads, buffer_values) in [(1, 1), (1, 1000), (3, 105), (7, 2080), (16, 1 << 21)] {
            let staging = Staging {
                threads,
                buffer_values,
            };
            let mut told = Vec::new();
            let mut progress = |done, total| told.push((done, total));
            let weights = load(
                &device,
                &source.spec,
                &source,
                &PackPlan::default(),
                staging,
                &mut progress,
            )
            .unwrap();
            assert!(
                buffers(&source.spec, &weights).concat() == expected,
                "{threads} threads, {buffer_values} values"
            );
            assert!(told.windows(2).all(|w| w[0].0 < w[1].0));
            assert_eq!(told.last(), Some(&(total, total)));
        }
    }
}

#[test]
fn weights_drawn_on_the_device_are_those_drawn_on_the_host() {
    let device = Device::open(0).unwrap();
    let source = source(true);
    let drawn = Weights::random(&device, &source.spec, source.seed, None).unwrap();
    let loaded = Weights::load(&device, &source.spec, &source, false, &mut |_, _| ()).unwrap();
    let (drawn, loaded) = (
        buffers(&source.spec, &drawn).concat(),
        buffers(&source.spec, &loaded).concat(),
    );
    let near = |(a, b): (&bf16, &bf16)| (a.to_f32() - b.to_f32()).abs() <= 0.004 * b.to_f32().abs();
    assert!(drawn.iter().zip(&loaded).all(near));
}

/// Fails, or panics, at one row of one tensor.
struct Broken {
    inner: RandomWeights,
    at: (TensorName, usize),
    panics: bool,
    reads: AtomicUsize,
}

impl WeightSource for Broken {
    type Error = std::io::Error;

    fn shape(&self, name: TensorName) -> Result<Vec<usize>, Self::Error> {
        let Ok(shape) = self.inner.shape(name);
        Ok(shape)
    }

    fn read_rows(
        &self,
        name: TensorName,
        first_row: usize,
        out: &mut [bf16],
    ) -> Result<(), Self::Error> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if (name, first_row) == self.at {
            assert!(!self.panics, "a bug in the source");
            return Err(std::io::Error::other("the disk is gone"));
        }
        let Ok(()) = self.inner.read_rows(name, first_row, out);
        Ok(())
    }
}

fn broken(row: usize, panics: bool) -> Broken {
    Broken {
        inner: source(false),
        at: (TensorName::Layer(1, LayerTensor::Up), row),
        panics,
        reads: AtomicUsize::new(0),
    }
}

#[test]
fn an_error_in_the_middle_names_its_tensor_and_ends_the_load() {
    let device = Device::open(0).unwrap();
    for threads in [1, 4] {
        let source = broken(100, false);
        let staging = Staging {
            threads,
            buffer_values: 104,
        };
        let error = load(
            &device,
            &source.inner.spec,
            &source,
            &PackPlan::default(),
            staging,
            &mut |_, _| (),
        );
        let error = error.unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot read the layer 1 Up tensor: the disk is gone"
        );
        let pieces: usize = TensorName::all(&source.inner.spec)
            .into_iter()
            .map(|name| crate::model::rows_of(&name.shape(&source.inner.spec)).0)
            .sum();
        let reads = source.reads.load(Ordering::Relaxed);
        assert!(reads < pieces, "{reads} of {pieces}");
    }
}

#[test]
#[should_panic(expected = "a bug in the source")]
fn a_panic_in_the_middle_is_passed_on() {
    let device = Device::open(0).unwrap();
    let source = broken(0, true);
    let staging = Staging {
        threads: 3,
        buffer_values: 500,
    };
    let _ = load(
        &device,
        &source.inner.spec,
        &source,
        &PackPlan::default(),
        staging,
        &mut |_, _| (),
    );
}

#[test]
fn a_tensor_of_another_shape_is_refused_before_anything_is_read() {
    let device = Device::open(0).unwrap();
    let source = broken(0, true);
    let mut other = source.inner.spec.clone();
    for layer in &mut other.layers {
        layer.mlp = Mlp::Dense {
            intermediate: 144,
            activation: Activation::Silu,
        };
    }
    let error = Weights::load(&device, &other, &source, false, &mut |_, _| ()).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("the layer 0 Gate tensor has shape [136, 104]"),
        "{error}"
    );
    assert_eq!(source.reads.load(Ordering::Relaxed), 0);
}
