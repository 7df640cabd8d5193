//! Models with packed weights: close to the same weights expanded to bf16, and as independent of
//! the batch.

use std::collections::HashMap;
use std::convert::Infallible;

use ebb_kernels::backend::Backend;
use ebb_kernels::bf16;
use ebb_kernels::cpu::CpuOptions;
use ebb_kernels::cpu::simd::Isa;
use ebb_kernels::formats::rotation::Rotation;
use ebb_kernels::kv::KvLayout;
use ebb_kernels::model::{
    ExpertActivation, ExpertsSpec, LayerTensor as L, TensorName, WeightSource,
};
use ebb_kernels::weight_formats::{
    Codes, PackedRows, PackedTensor, Quantisation, QuantisedWeights, WeightFormat,
};

use crate::common::paged::{Chunk, Paged, same};
use crate::common::{EXPERTS, Family, Random, RandomWeights, with_experts};

const fn int(bits: u8, zero: u8, group: usize, has_offsets: bool) -> WeightFormat {
    WeightFormat {
        codes: Codes::Int { bits, zero },
        group,
        has_offsets,
    }
}

const E4M3: WeightFormat = WeightFormat {
    codes: Codes::E4M3,
    group: 4096,
    has_offsets: false,
};

const MXFP4: WeightFormat = WeightFormat {
    codes: Codes::E2M1,
    group: 32,
    has_offsets: false,
};

/// Every tensor in its own format, embeddings included; as a GGUF file may have them.
#[derive(Clone)]
struct Mixed {
    weights: RandomWeights,
    formats: HashMap<&'static str, WeightFormat>,
}

impl Mixed {
    fn quantisation(&self, name: TensorName) -> Option<Quantisation> {
        let key = match name {
            TensorName::Embedding => "embedding",
            TensorName::LmHead => "head",
            TensorName::Layer(_, L::Q) => "q",
            TensorName::Layer(_, L::K) => "k",
            TensorName::Layer(_, L::V) => "v",
            TensorName::Layer(_, L::O) => "o",
            TensorName::Layer(_, L::Gate) => "gate",
            TensorName::Layer(_, L::Up) => "up",
            TensorName::Layer(_, L::Down) => "down",
            _ => return None,
        };
        let format = self.formats.get(key);
        format.map(|format| Quantisation::Nearest(*format))
    }

    fn tensor(&self, name: TensorName, first: usize, len: usize) -> Option<PackedTensor> {
        let quantisation = self.quantisation(name)?;
        let mut plain = vec![bf16::ZERO; len];
        let Ok(()) = self.weights.read_rows(name, first, &mut plain);
        let plain: Vec<f32> = plain.iter().map(|x| x.to_f32()).collect();
        Some(quantisation.tensor(name.shape(&self.weights.spec)[1], &plain))
    }
}

impl WeightSource for Mixed {
    type Error = Infallible;

    fn shape(&self, name: TensorName) -> Result<Vec<usize>, Infallible> {
        self.weights.shape(name)
    }

    fn read_rows(
        &self,
        name: TensorName,
        first_row: usize,
        out: &mut [bf16],
    ) -> Result<(), Infallible> {
        match self.tensor(name, first_row, out.len()) {
            Some(tensor) => out.copy_from_slice(&tensor.dequantise()),
            None => return self.weights.read_rows(name, first_row, out),
        }
        Ok(())
    }

    fn packed(&self, name: TensorName) -> Result<Option<WeightFormat>, Infallible> {
        let quantisation = self.quantisation(name);
        let inputs = || name.shape(&self.weights.spec)[1];
        Ok(quantisation.map(|quantisation| quantisation.format(inputs())))
    }

    fn read_packed(
        &self,
        name: TensorName,
        first_row: usize,
        out: PackedRows<'_>,
    ) -> Result<(), Infallible> {
        let tensor = self.tensor(name, first_row, out.codes.len()).unwrap();
        tensor.copy_rows(0, out);
        Ok(())
    }
}

/// Wide enough for groups of 32; a head of 16.
fn weights(family: Family) -> RandomWeights {
    let mut spec = family.spec();
    spec.hidden = 96;
    RandomWeights { spec, seed: 3 }
}

fn text(seed: u64, len: usize) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.below(101) as u32).collect()
}

fn start<W: WeightSource>(weights: &RandomWeights, source: &W, change: CpuOptions) -> Paged {
    let options = CpuOptions {
        layout: Some(KvLayout::sixteen_bit(weights.spec.kv_geometry()).unwrap()),
        ..change
    };
    Paged::of(&weights.spec, source, 1000, 5, options)
}

fn logits(paged: &mut Paged, tokens: &[u32], chunk: usize) -> Vec<Vec<f32>> {
    let seq = paged.add();
    let chunks = tokens.chunks(chunk);
    chunks
        .flat_map(|tokens| paged.run(&[Chunk { seq, tokens }]))
        .collect()
}

fn log_probs(logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f32::MIN, f32::max);
    let shifted = logits.iter().map(|x| f64::from(x - most));
    let sum = shifted.clone().map(f64::exp).sum::<f64>().ln();
    shifted.map(|x| x - sum).collect()
}

/// What may differ. Activations have two bytes: rounding to 2 · 127 · 254 steps of a block's
/// greatest magnitude, 2.5 times its root mean square, is off by 2.5 / (127 · 254 √12) = 0.002 % of
/// a product's size, which does not count. Expanded weights are rounded to bf16, by up to 2^-9 of
/// themselves, 2^-9 / √3 = 0.11 % at root mean square; packed ones have scales in f16, four times
/// finer. A token goes through twelve products one after another, independent of each other:
/// 0.11 % √12 = 0.4 % of the logits, of which softmax and SwiGLU may make twice as much, 0.8 %.
/// Log-probabilities move by about as much of the logits' spread of 6, 0.05 at root mean square, of
/// which KL is half the square: 0.001 at most, and far less where one token is likely.
fn assert_close(got: &[Vec<f32>], want: &[Vec<f32>], what: &str) {
    let (mut kl, mut errors, mut squares) = (0.0, 0.0, 0.0);
    for (got, want) in got.iter().zip(want) {
        for (got, want) in got.iter().zip(want) {
            errors += f64::from(got - want).powi(2);
            squares += f64::from(*want).powi(2);
        }
        for (got, want) in log_probs(got).iter().zip(log_probs(want)) {
            kl += want.exp() * (want - got) / 150.0;
        }
    }
    let relative = f64::sqrt(errors / squares);
    eprintln!("{what}: KL {kl:.1e}, logits off by {relative:.4}");
    assert!(relative < 0.008, "{what}: logits are off by {relative:.4}");
    assert!(kl < 1e-3, "{what}: KL {kl:.1e}");
}

/// Runs a source with its weights packed and expanded, and returns the names of its formats.
fn check<W: WeightSource>(weights: &RandomWeights, source: &W, what: &str) -> Vec<String> {
    let tokens = text(8, 150);
    let mut packed = start(weights, source, CpuOptions::new(2));
    let got = logits(&mut packed, &tokens, 60);
    let exact = CpuOptions {
        expand_weights: true,
        ..CpuOptions::new(2)
    };
    let mut expanded = start(weights, source, exact);
    let want = logits(&mut expanded, &tokens, 60);
    assert_close(&got, &want, what);
    assert!(!got.iter().zip(&want).all(|(a, b)| same(a, b)), "{what}");
    let names = |paged: &Paged| -> Vec<String> {
        let of = paged.backend.weight_bytes();
        assert!(of.iter().all(|(_, bytes)| *bytes > 0));
        of.into_iter().map(|(name, _)| name).collect()
    };
    assert_eq!(names(&expanded), ["bf16"], "{what}");
    // Alone, on one thread, on every instruction set, token by token: the same bits.
    for isa in Isa::available() {
        let options = CpuOptions {
            isa,
            ..CpuOptions::new(1)
        };
        let mut alone = start(weights, source, options);
        let again = logits(&mut alone, &tokens, 1);
        let is_same = again.iter().zip(&got).all(|(a, b)| same(a, b));
        assert!(is_same, "{what}, {}", isa.name());
    }
    names(&packed)
}

#[test]
fn close_to_the_same_weights_expanded() {
    let weights = weights(Family::LLAMA);
    let formats = [
        int(8, 128, 32, false),
        int(4, 8, 32, false),
        int(4, 0, 32, true),
        int(6, 32, 16, false),
        int(5, 0, 32, true),
        E4M3,
    ];
    for format in formats {
        let source = QuantisedWeights::new(weights.clone(), Quantisation::Nearest(format));
        check(&weights, &source, &format.to_string());
    }
    check(
        &weights,
        &QuantisedWeights::new(weights.clone(), Quantisation::Int4),
        "int4",
    );
}

#[test]
fn tensors_of_one_layer_in_several_formats() {
    let (q4, q6) = (int(4, 0, 32, true), int(6, 32, 16, false));
    for (tied, qkv_bias) in [(true, false), (false, true)] {
        let family = Family {
            tied,
            qkv_bias,
            ..Family::LLAMA
        };
        let weights = weights(family);
        // As Q4_K_M has them.
        let mut formats = HashMap::from([
            ("q", q4),
            ("k", q4),
            ("v", q6),
            ("o", q4),
            ("gate", q4),
            ("up", q6),
            ("down", q6),
            ("embedding", q6),
            ("head", q6),
        ]);
        let source = Mixed {
            weights: weights.clone(),
            formats: formats.clone(),
        };
        let names = check(&weights, &source, "all packed");
        assert!(!names.contains(&"bf16".to_owned()), "{names:?}");
        // Plain ones among them, and pairs that do not fit.
        formats.remove("q");
        formats.insert("v", E4M3);
        formats.insert("up", E4M3);
        formats.insert("o", int(4, 8, 24, false));
        let source = Mixed {
            weights: weights.clone(),
            formats,
        };
        let names = check(&weights, &source, "some packed");
        assert!(names.contains(&"bf16".to_owned()), "{names:?}");
    }
}

/// All experts are chosen, so that no decision depends on rounding.
#[test]
fn packed_experts() {
    let clamped = ExpertActivation::Clamped {
        limit: 7.0,
        alpha: 1.702,
    };
    let plain = (ExpertActivation::SwiGlu, false);
    for (format, (activation, biases)) in [
        (int(4, 8, 32, false), plain),
        (E4M3, plain),
        (int(8, 128, 32, false), (clamped, true)),
        (MXFP4, (clamped, true)),
    ] {
        let mut spec = with_experts(&ExpertsSpec {
            experts: 4,
            per_token: 4,
            activation,
            biases,
            ..EXPERTS
        });
        spec.hidden = 96;
        let weights = RandomWeights { spec, seed: 3 };
        let source = QuantisedWeights::new(weights.clone(), Quantisation::Nearest(format));
        check(&weights, &source, &format.to_string());
    }
}

#[test]
fn rotated_values() {
    let weights = weights(Family::LLAMA);
    let source = QuantisedWeights::new(
        weights.clone(),
        Quantisation::Nearest(int(8, 128, 32, false)),
    );
    let tokens = text(8, 150);
    let run = |rotate_v_online, expand_weights| {
        let options = CpuOptions {
            rotation: Rotation { k: false, v: true },
            rotate_v_online,
            expand_weights,
            ..CpuOptions::new(2)
        };
        let mut paged = start(&weights, &source, options);
        let names = paged.backend.weight_bytes();
        (logits(&mut paged, &tokens, 60), names.len())
    };
    let (want, _) = run(false, true);
    // Folded into V and O, which are expanded for it; or online, with all packed. Both keep the
    // embedding in bf16.
    for online in [false, true] {
        let (got, formats) = run(online, false);
        assert_close(&got, &want, if online { "online" } else { "folded" });
        assert_eq!(formats, 2);
    }
}

#[test]
fn sources_without_packed_tensors_are_not_quantised() {
    let weights = weights(Family::LLAMA);
    let run = |expand_weights| {
        let options = CpuOptions {
            expand_weights,
            ..CpuOptions::new(2)
        };
        logits(&mut start(&weights, &weights, options), &text(1, 40), 20)
    };
    let (a, b) = (run(false), run(true));
    assert!(a.iter().zip(&b).all(|(a, b)| same(a, b)));
}
