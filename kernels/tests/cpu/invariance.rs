//! A row's bits are a function of its token, its position and the pages: not of the batch, the
//! chunks, the threads, the placement of frames, the instruction set, or memory it does not own.

use ebb_kernels::model::{ExpertActivation, ExpertsSpec, QkNorm, RouterNorm, SharedExpert};

use crate::common::paged::{Chunk, Paged, same};
use crate::common::{EXPERTS, Family, Random, RandomWeights, hybrid, with_experts};
use ebb_kernels::backend::StateCopy;
use ebb_kernels::cpu::simd::Isa;
use proptest::prelude::*;

fn weights(family: Family) -> RandomWeights {
    RandomWeights {
        spec: family.spec(),
        seed: 3,
    }
}

fn text(seed: u64, len: usize) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.below(101) as u32).collect()
}

/// Logits of every token of a sequence that runs alone, one token at a time, on one thread.
fn alone(weights: &RandomWeights, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut paged = Paged::new(weights, 1000, 1, 0);
    let seq = paged.add();
    let step = |token| {
        paged
            .run(&[Chunk {
                seq,
                tokens: &[token],
            }])
            .remove(0)
    };
    tokens.iter().copied().map(step).collect()
}

/// Logits of several sequences that run together, cut into random chunks.
fn together(
    paged: &mut Paged,
    texts: &[Vec<u32>],
    chunk_max: usize,
    random: &mut Random,
) -> Vec<Vec<Vec<f32>>> {
    let first = paged.seqs.len();
    for _ in texts {
        paged.add();
    }
    let mut logits = vec![vec![]; texts.len()];
    while logits.iter().zip(texts).any(|(l, t)| l.len() < t.len()) {
        let mut chunks = vec![];
        for (i, text) in texts.iter().enumerate() {
            let left = &text[logits[i].len()..];
            // Some sequences sit a step out.
            if !left.is_empty() && random.below(4) > 0 {
                let tokens = &left[..left.len().min(1 + random.below(chunk_max))];
                chunks.push(Chunk {
                    seq: first + i,
                    tokens,
                });
            }
        }
        let mut rows = paged.run(&chunks).into_iter();
        for chunk in &chunks {
            logits[chunk.seq - first].extend(rows.by_ref().take(chunk.tokens.len()));
        }
    }
    logits
}

fn assert_same(got: &[Vec<f32>], want: &[Vec<f32>], what: &str) {
    assert_eq!(got.len(), want.len());
    for (i, (a, b)) in got.iter().zip(want).enumerate() {
        assert!(same(a, b), "{what}: row {i} differs");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn batch_chunks_threads_and_placement(
        seed in any::<u64>(),
        lens in prop::collection::vec(1usize..300, 1..5),
        chunk_max in prop_oneof![Just(1usize), 2usize..20, 100usize..300],
        threads in 1usize..5,
    ) {
        let weights = weights(Family::LLAMA);
        let texts = lens.iter().enumerate().map(|(i, n)| text(seed ^ i as u64, *n));
        let texts: Vec<_> = texts.collect();
        let mut paged = Paged::new(&weights, 3000, threads, seed);
        let mut random = Random::new(seed);
        let got = together(&mut paged, &texts, chunk_max, &mut random);
        for (text, got) in texts.iter().zip(&got) {
            let want = alone(&weights, text);
            prop_assert!(got.iter().zip(&want).all(|(a, b)| same(a, b)));
        }
    }
}

#[test]
fn head_dims_that_are_not_whole_vectors() {
    for (head_dim, kv_heads) in [(8, 6), (72, 1), (40, 3)] {
        let weights = weights(Family {
            head_dim,
            kv_heads,
            qk_norm: QkNorm::PerHead,
            ..Family::LLAMA
        });
        let texts = [text(1, 140), text(2, 20)];
        let mut paged = Paged::new(&weights, 3000, 3, 9);
        let got = together(&mut paged, &texts, 150, &mut Random::new(4));
        for (text, got) in texts.iter().zip(&got) {
            assert_same(got, &alone(&weights, text), "head_dim");
        }
    }
}

#[test]
fn long_contexts_split_over_threads() {
    // 1100 tokens are 9 blocks: with 4 threads a single row is divided among tasks.
    let weights = weights(Family::LLAMA);
    let text = text(5, 1100);
    let run = |threads| {
        let mut paged = Paged::new(&weights, 2000, threads, threads as u64);
        let seq = paged.add();
        let mut logits = paged.run(&[Chunk {
            seq,
            tokens: &text[..1000],
        }]);
        for token in &text[1000..] {
            logits.extend(paged.run(&[Chunk {
                seq,
                tokens: &[*token],
            }]));
        }
        logits
    };
    let want = run(1);
    for threads in [2, 4, 7] {
        assert_same(&run(threads), &want, "threads");
    }
}

#[test]
fn instruction_sets() {
    let weights = weights(Family::LLAMA);
    let texts = [text(6, 150), text(7, 9)];
    let want: Vec<_> = texts.iter().map(|t| alone(&weights, t)).collect();
    for isa in Isa::available() {
        let mut paged = Paged::with_isa(&weights, 2000, 2, 1, isa);
        let got = together(&mut paged, &texts, 60, &mut Random::new(8));
        for (got, want) in got.iter().zip(&want) {
            assert_same(got, want, isa.name());
        }
    }
}

#[test]
fn experts_of_a_row_know_nothing_of_other_rows() {
    let shared = |gated| {
        Some(SharedExpert {
            intermediate: 36,
            gated,
        })
    };
    check_experts(&ExpertsSpec {
        per_token: 3,
        shared: shared(true),
        ..EXPERTS
    });
    check_experts(&ExpertsSpec {
        activation: ExpertActivation::GeGlu,
        shared: shared(false),
        router_norm: Some(RouterNorm { multiplier: 0.4 }),
        weight_scales: true,
        branch_norms: true,
        ..EXPERTS
    });
}

fn check_experts(experts: &ExpertsSpec) {
    let weights = RandomWeights {
        spec: with_experts(experts),
        seed: 3,
    };
    // So many rows that an expert has several blocks of them.
    let texts = [text(6, 400), text(7, 9), text(8, 60)];
    let want: Vec<_> = texts.iter().map(|t| alone(&weights, t)).collect();
    for (isa, threads) in Isa::available().into_iter().zip([1, 2, 5]) {
        let mut paged = Paged::with_isa(&weights, 2000, threads, 1, isa);
        let got = together(&mut paged, &texts, 400, &mut Random::new(8));
        for (got, want) in got.iter().zip(&want) {
            assert_same(got, want, isa.name());
        }
    }
}

#[test]
fn a_fork_continues_as_its_parent_would() {
    let weights = weights(Family::LLAMA);
    let prompt = text(9, 200);
    let (left, right) = (text(10, 30), text(11, 30));
    let mut paged = Paged::new(&weights, 2000, 2, 2);
    let parent = paged.add();
    paged.run(&[Chunk {
        seq: parent,
        tokens: &prompt,
    }]);
    let (child, copies) = paged.fork(parent);
    let mut got = [vec![], vec![]];
    for i in 0..30 {
        let mut input = paged.input(&[
            Chunk {
                seq: parent,
                tokens: &left[i..=i],
            },
            Chunk {
                seq: child,
                tokens: &right[i..=i],
            },
        ]);
        if i == 0 {
            input.copies = copies.clone();
        }
        let mut rows = paged.step(&input);
        got[1].push(rows.remove(1));
        got[0].push(rows.remove(0));
    }
    for (got, tail) in got.iter().zip([left, right]) {
        let whole = [prompt.clone(), tail].concat();
        assert_same(got, &alone(&weights, &whole)[200..], "fork");
    }
}

#[test]
fn a_prefix_written_in_the_same_step_can_be_read() {
    let weights = weights(Family::LLAMA);
    let text = text(12, 140);
    let mut paged = Paged::new(&weights, 2000, 3, 3);
    let writer = paged.add();
    let reader = paged.add();
    // The reader is attached to the block that the writer fills in this very step.
    paged.grow(writer, 130);
    let per_block = paged.pages.frames(0) as usize;
    paged.seqs[reader].frames = paged.seqs[writer].frames[..per_block].to_vec();
    paged.seqs[reader].len = 128;
    let chunks = [
        Chunk {
            seq: writer,
            tokens: &text[..130],
        },
        Chunk {
            seq: reader,
            tokens: &text[128..],
        },
    ];
    let got = paged.run(&chunks);
    let want = alone(&weights, &text);
    assert_same(&got[..130], &want[..130], "writer");
    assert_same(&got[130..], &want[128..], "reader");
}

#[test]
fn only_the_wanted_logits_and_only_the_own_frames() {
    let weights = weights(Family::LLAMA);
    let text = text(13, 40);
    let want = alone(&weights, &text);
    let mut paged = Paged::new(&weights, 300, 2, 4);
    let seq = paged.add();
    let mut input = paged.input(&[Chunk { seq, tokens: &text }]);
    input.logit_rows = vec![3, 39];
    let got = paged.step(&input);
    assert_same(&got, &[want[3].clone(), want[39].clone()], "wanted rows");
    input.logit_rows.clear();
    assert!(paged.step(&input).is_empty());
    let arena = paged.backend.arena();
    for f in (0..arena.frames()).filter(|f| !paged.seqs[seq].frames.contains(f)) {
        assert!(
            arena.frame(f).iter().all(|b| *b == 0xff),
            "frame {f} was written"
        );
    }
}

#[test]
fn states_go_on_where_they_were_whatever_the_chunks() {
    let weights = weights(Family {
        layers: hybrid,
        ..Family::LLAMA
    });
    let texts: Vec<_> = (0..3).map(|i| text(i, 40 + 70 * i as usize)).collect();
    let want: Vec<_> = texts.iter().map(|text| alone(&weights, text)).collect();
    for (threads, chunk_max, isa) in [
        (1, 7, Isa::available().pop().expect("one")),
        (3, 50, Isa::detect()),
        (4, 300, Isa::detect()),
    ] {
        let mut random = Random::new(chunk_max as u64);
        let mut paged = Paged::with_isa(&weights, 1000, threads, 1, isa);
        for round in 0..2 {
            let got = together(&mut paged, &texts, chunk_max, &mut random);
            for (got, want) in got.iter().zip(&want) {
                assert_same(got, want, &format!("{threads} threads, round {round}"));
            }
        }
    }
}

#[test]
fn a_copied_state_is_that_of_the_sequence_it_was_copied_from() {
    let weights = weights(Family {
        layers: hybrid,
        ..Family::LLAMA
    });
    let shared = text(1, 61);
    let tails = [text(2, 20), text(3, 20)];
    let mut paged = Paged::new(&weights, 400, 2, 1);
    let parent = paged.add();
    paged.run(&[Chunk {
        seq: parent,
        tokens: &shared,
    }]);
    let (child, copies) = paged.fork(parent);
    // By way of a third slot, in order; the parent goes on in the same step.
    let kept = 7;
    let mut input = paged.input(&[
        Chunk {
            seq: parent,
            tokens: &tails[0],
        },
        Chunk {
            seq: child,
            tokens: &tails[1],
        },
    ]);
    input.copies = copies;
    let (src, dst) = (parent as u32, child as u32);
    input.state_copies = vec![StateCopy { src, dst: kept }, StateCopy { src: kept, dst }];
    let rows = paged.step(&input);
    for (tail, rows) in tails.iter().zip(rows.chunks(20)) {
        let whole = [&shared[..], tail].concat();
        let want = alone(&weights, &whole);
        assert_same(rows, &want[shared.len()..], "a tail");
    }
}
