//! Steps and models that contradict themselves end with an error, and the backend lives on.

use crate::common::paged::{Chunk, Paged};
use crate::common::{Family, Random, RandomWeights, hybrid};
use ebb_kernels::backend::{
    Backend, BackendError, StateCopy, StepInput, StepInputError, TableDelta,
};
use ebb_kernels::bf16;
use ebb_kernels::cpu::{CpuBackend, CpuOptions, LoadError};
use ebb_kernels::formats::FormatId;
use ebb_kernels::kv::{KvArena, KvLayout};
use ebb_kernels::model::{LayerTensor, TensorName, WeightSource};
use proptest::prelude::*;

fn weights() -> RandomWeights {
    RandomWeights {
        spec: Family::LLAMA.spec(),
        seed: 1,
    }
}

/// Changes one number of a step to something small, large or near.
fn corrupt(input: &mut StepInput, random: &mut Random) {
    let mut fields: Vec<&mut u32> = vec![];
    for seq in &mut input.seqs {
        fields.extend([
            &mut seq.slot,
            &mut seq.first_row,
            &mut seq.rows,
            &mut seq.position,
        ]);
    }
    for shrink in &mut input.shrinks {
        fields.extend([&mut shrink.source, &mut shrink.target]);
    }
    for delta in &mut input.deltas {
        match delta {
            TableDelta::Row { slot, index, block } => fields.extend([slot, index, block]),
            TableDelta::Block { block, .. } => fields.push(block),
            TableDelta::Frame {
                block,
                index,
                frame,
            } => fields.extend([block, index, frame]),
        }
    }
    fields.extend(&mut input.shrink_frames);
    fields.extend(&mut input.tokens);
    fields.extend(&mut input.logit_rows);
    let at = random.below(fields.len());
    let field = &mut *fields[at];
    *field = match random.below(5) {
        0 => u32::MAX,
        1 => 0,
        2 => field.wrapping_add(1),
        3 => field.wrapping_sub(1),
        _ => random.bits() as u32,
    };
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever single number is wrong, the step is refused or harmless: frames that no sequence
    /// of the step names stay as they were.
    #[test]
    fn one_wrong_number(seed in any::<u64>()) {
        let weights = weights();
        let geometry = weights.spec.kv_geometry();
        let pages = KvLayout::new(geometry, geometry.frame_layout(), &[vec![FormatId::Int4; 6]]);
        let options = CpuOptions { layout: Some(pages.unwrap()), ..CpuOptions::new(2) };
        let mut paged = Paged::with_options(&weights, 150, seed, options);
        let mut random = Random::new(seed);
        let (a, b) = (paged.add(), paged.add());
        let tokens: Vec<u32> = (0..60).map(|_| random.below(101) as u32).collect();
        paged.run(&[Chunk { seq: a, tokens: &tokens[..20] }]);
        let c = paged.add();
        let full: Vec<u32> = (0..128).map(|_| random.below(101) as u32).collect();
        paged.run(&[Chunk { seq: c, tokens: &full }]);
        let pending = paged.shrink(c, 0, 1);
        let mut input = paged.input(&[
            Chunk { seq: a, tokens: &tokens[..30] },
            Chunk { seq: b, tokens: &tokens[30..] },
            Chunk { seq: c, tokens: &tokens[..3] },
        ]);
        pending.attach(&mut input);
        corrupt(&mut input, &mut random);
        let arena = paged.backend.arena();
        let before: Vec<Vec<u8>> = (0..arena.frames()).map(|f| arena.frame(f).to_vec()).collect();
        match paged.backend.step(&input) {
            Ok(output) => prop_assert_eq!(output.logits.len(), input.logit_rows.len() * 101),
            Err(error) => prop_assert!(matches!(error, BackendError::Input(_)), "{}", error),
        }
        let mut named: Vec<u32> = paged.seqs.iter().flat_map(|s| &s.frames).copied().collect();
        named.extend(&input.shrink_frames);
        named.extend(input.deltas.iter().filter_map(|delta| match delta {
            TableDelta::Frame { frame, .. } => Some(frame),
            _ => None,
        }));
        let arena = paged.backend.arena();
        for f in (0..arena.frames()).filter(|f| !named.contains(f)) {
            prop_assert!(arena.frame(f) == &before[f as usize][..], "frame {}", f);
        }
    }
}

/// A source whose K tensor of layer 1 is wrong.
struct Wrong(RandomWeights, bool);

impl WeightSource for Wrong {
    type Error = std::io::Error;

    fn shape(&self, name: TensorName) -> Result<Vec<usize>, Self::Error> {
        let Ok(mut shape) = self.0.shape(name);
        if self.1 && name == TensorName::Layer(1, LayerTensor::K) {
            shape[0] += 1;
        }
        Ok(shape)
    }

    fn read_rows(
        &self,
        name: TensorName,
        first_row: usize,
        out: &mut [bf16],
    ) -> Result<(), Self::Error> {
        if name == TensorName::Layer(1, LayerTensor::K) {
            return Err(std::io::Error::other("the disk is gone"));
        }
        let Ok(()) = self.0.read_rows(name, first_row, out);
        Ok(())
    }
}

#[test]
fn models_that_do_not_fit_their_spec() {
    let spec = weights().spec;
    let layout = spec.kv_geometry().frame_layout();
    let arena = || KvArena::new(layout, 4).unwrap();
    let load = |spec, wrong, arena| {
        CpuBackend::new(spec, &Wrong(weights(), wrong), arena, 1, &mut |_, _| ()).unwrap_err()
    };
    let error = load(spec.clone(), true, arena());
    assert!(matches!(&error, LoadError::Shape { actual, .. } if actual[0] == 33));
    assert!(
        error
            .to_string()
            .starts_with("the layer 1 K tensor has shape [33, 52]")
    );
    let error = load(spec.clone(), false, arena());
    assert!(matches!(error, LoadError::Source { .. }));
    let mut odd = spec.clone();
    for layer in &mut odd.layers {
        layer.attention_mut().kv_heads = 4;
    }
    assert!(matches!(load(odd, false, arena()), LoadError::Spec(_)));
    let mut blind = spec.clone();
    blind.layers[1].attention_mut().window = Some(0);
    assert!(matches!(load(blind, false, arena()), LoadError::Spec(_)));
    let mut small = layout;
    small.frame_bytes /= 2;
    let arena = KvArena::new(small, 4).unwrap();
    assert!(matches!(load(spec, false, arena), LoadError::Frames { .. }));
}

#[test]
fn progress_counts_every_byte_once() {
    let spec = weights().spec;
    let arena = KvArena::new(spec.kv_geometry().frame_layout(), 4).unwrap();
    let mut calls: Vec<(u64, u64)> = vec![];
    let mut progress = |done, total| calls.push((done, total));
    CpuBackend::new(spec.clone(), &weights(), arena, 2, &mut progress).unwrap();
    assert_eq!(calls.len(), TensorName::all(&spec).len());
    assert!(calls.windows(2).all(|w| w[0].0 < w[1].0));
    let (done, total) = calls[calls.len() - 1];
    assert_eq!(done, total);
}

#[test]
fn rows_that_do_not_follow_their_state_are_refused() {
    let weights = RandomWeights {
        spec: Family {
            layers: hybrid,
            ..Family::LLAMA
        }
        .spec(),
        seed: 1,
    };
    let mut paged = Paged::new(&weights, 100, 2, 1);
    let seq = paged.add();
    let tokens = [1, 2, 3, 4];
    let first = paged.input(&[Chunk {
        seq,
        tokens: &tokens,
    }]);
    let whole = paged.step(&first);
    // The same rows once more, but not from the start.
    let mut again = StepInput::default();
    again.push_seq(seq as u32, 2, &tokens[2..]);
    let refused = StepInputError::State {
        seq: 0,
        position: 2,
        found: Some(4),
    };
    let error = paged.backend.step(&again).unwrap_err();
    assert_eq!(error, BackendError::Input(refused));
    let said = error.to_string();
    assert!(said.contains("its state stands for 4 tokens"), "{said}");
    // From the start they may.
    let mut again = first.clone();
    again.deltas.clear();
    let once_more = paged.step(&again);
    assert_eq!(once_more, whole);
    // A model without recurrent layers has no states.
    let mut plain = Paged::new(&self::weights(), 100, 2, 1);
    let mut copies = StepInput::default();
    copies.state_copies.push(StateCopy { src: 0, dst: 1 });
    let error = plain.backend.step(&copies).unwrap_err().to_string();
    assert!(error.contains("slot 0 of 0"), "{error}");
}
