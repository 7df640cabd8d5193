//! Layers of experts on the CPU: rows are sorted by expert, so that an expert's weights are read
//! once for all of its rows. A row's result does not depend on the others: every product is the
//! same whatever the rows beside it, and experts are added up in the order of the row's choice.

use std::collections::TryReserveError;

use super::floats::Floats;
use super::linear::{Group, Io, Linear, Then, multiply_groups};
use super::math::{self, exp};
use super::ops::{Activate, activate_rows, for_rows};
use super::packed::Activations;
use super::shared::SharedSlice;
use super::simd::{Isa, Kernel, Simd};
use super::threads::{Pool, TaskPanic};
use crate::model::routing::{Choice, OfExperts, route};
use crate::model::{ExpertActivation, ExpertsSpec, LayerSpec, ModelSpec};

/// The weights of a layer's experts.
#[derive(Debug)]
pub(super) struct Experts {
    pub(super) router: Linear,
    /// Of each expert, for the choice alone.
    pub(super) correction: Option<Vec<f32>>,
    /// Of each expert, for its weight.
    pub(super) scales: Option<Vec<f32>>,
    /// Of each expert. One product gates if [`is_fused`].
    pub(super) gate_up: Vec<Linear>,
    pub(super) down: Vec<Linear>,
    /// What scores the shared expert, if anything does: one output.
    pub(super) shared_score: Option<Linear>,
}

/// Whether gate and up are multiplied and gated at once.
pub(super) fn is_fused(spec: &ExpertsSpec) -> bool {
    let is_plain = matches!(
        spec.activation,
        ExpertActivation::SwiGlu | ExpertActivation::GeGlu
    );
    is_plain && !spec.biases
}

/// Activations of layers of experts, kept between steps.
#[derive(Debug, Default)]
pub(super) struct ExpertScratch {
    /// `[rows][experts]`
    scores: Floats,
    /// `[rows]`: the shared expert's.
    shared_scores: Floats,
    /// `[rows][per token]`
    chosen: Vec<Choice>,
    /// Of each choice, its place among those sorted by expert.
    places: Vec<usize>,
    /// Where the choices of each expert end in that order.
    ends: Vec<usize>,
    /// `[choices][hidden]`, sorted: inputs, and then outputs.
    sorted: Floats,
    /// `[choices][2 * intermediate]`, of products that do not gate.
    gate_up: Floats,
    /// `[choices][intermediate]`
    gated: Floats,
}

/// What layers of experts need for each row of a step: the most of all layers.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct RowNeeds {
    /// Floats of scores, of sorted rows, of gate and up, and gated.
    floats: [usize; 4],
    /// Experts that a row goes through.
    per_token: usize,
    /// Inputs of a product that quantises them.
    quantised_inputs: usize,
}

impl RowNeeds {
    pub(super) fn of(spec: &ModelSpec, quantised_inputs: usize) -> Self {
        let mut needs = Self {
            quantised_inputs,
            ..Self::default()
        };
        for spec_of in spec.layers.iter().filter_map(LayerSpec::experts) {
            let (inner, per_token) = (spec_of.intermediate, spec_of.per_token);
            let has_both = !is_fused(spec_of) && spec_of.activation.is_gated();
            let gate_up = if has_both { 2 * inner } else { 0 };
            let [sorted, gate_up, gated] = [spec.hidden, gate_up, inner].map(|x| x * per_token);
            let floats = [spec_of.experts, sorted, gate_up, gated];
            for (most, floats) in needs.floats.iter_mut().zip(floats) {
                *most = (*most).max(floats);
            }
            needs.per_token = needs.per_token.max(per_token);
        }
        needs
    }

    /// Bytes for so many rows.
    pub(super) fn bytes(&self, rows: usize) -> usize {
        let floats: usize = self.floats.iter().sum();
        let choices = rows.saturating_mul(self.per_token);
        rows.saturating_mul(floats * size_of::<f32>())
            .saturating_add(Activations::bytes(choices, self.quantised_inputs))
    }
}

impl ExpertScratch {
    /// Makes room for `rows` rows.
    pub(super) fn reserve(
        &mut self,
        needs: &RowNeeds,
        rows: usize,
        quantised: &mut Activations,
    ) -> Result<(), TryReserveError> {
        let [scores, sorted, gate_up, gated] =
            needs.floats.map(|floats| floats.saturating_mul(rows));
        let choices = rows.saturating_mul(needs.per_token);
        self.scores.grow(scores)?;
        self.shared_scores.grow(choices.min(rows))?;
        self.sorted.grow(sorted)?;
        self.gate_up.grow(gate_up)?;
        self.gated.grow(gated)?;
        quantised.reserve(choices, needs.quantised_inputs)
    }
}

/// What a layer of experts reads and writes.
pub(super) struct ExpertsIo<'a> {
    pub(super) rows: usize,
    /// `[rows][hidden]`
    pub(super) input: &'a [f32],
    /// `[rows][hidden]`: what the router reads.
    pub(super) router: &'a [f32],
    /// `[rows][hidden]`: what the shared expert has put out, if it is added to that.
    pub(super) output: &'a mut [f32],
    /// Room for inputs, quantised.
    pub(super) quantised: &'a mut Activations,
    pub(super) scratch: &'a mut ExpertScratch,
}

impl Experts {
    /// All linear layers.
    pub(super) fn linears(&self) -> impl Iterator<Item = &Linear> {
        let products = self.gate_up.iter().chain(&self.down);
        std::iter::once(&self.router).chain(products)
    }

    /// Bytes of the weights that a row reads.
    pub(super) fn bytes_per_row(&self, spec: &ExpertsSpec) -> usize {
        let products = self.gate_up.iter().chain(&self.down);
        let all: usize = products.map(Linear::bytes).sum();
        self.router.bytes() + all / spec.experts * spec.per_token
    }

    /// The chosen experts' outputs, added to the shared expert's if that is no branch by itself.
    pub(super) fn run(
        &self,
        (pool, isa): (&mut Pool, Isa),
        spec: &ExpertsSpec,
        io: ExpertsIo<'_>,
    ) -> Result<(), TaskPanic> {
        let ExpertsIo {
            rows,
            input,
            router,
            output,
            quantised,
            scratch,
        } = io;
        if rows == 0 {
            return Ok(());
        }
        let hidden = input.len() / rows;
        self.route(
            (&mut *pool, isa),
            spec,
            (rows, router, input),
            &mut *quantised,
            scratch,
        )?;
        let choices = rows * spec.per_token;
        let sorted = SharedSlice::new(&mut scratch.sorted);
        let (places, chosen) = (&scratch.places, &scratch.chosen);
        for_rows(pool, choices, hidden, |first, end| {
            for (choice, place) in (first..end).zip(&places[first..end]) {
                let row = choice / spec.per_token;
                // SAFETY: no two choices have the same place.
                let to = unsafe { sorted.slice(place * hidden, hidden) };
                to.copy_from_slice(&input[row * hidden..][..hidden]);
                if spec.weighted_input {
                    let weight = chosen[choice].weight;
                    to.iter_mut().for_each(|x| *x *= weight);
                }
            }
        })?;
        if spec.weighted_input {
            let chosen = scratch.chosen.iter_mut();
            chosen.for_each(|choice| choice.weight = 1.0);
        }
        let groups = |linears| Self::groups(linears, &scratch.ends);
        let fused = is_fused(spec);
        let has_gates = spec.activation.is_gated();
        let gate_up = Io {
            rows: choices,
            input: &scratch.sorted[..choices * hidden],
            quantised: &mut *quantised,
            output: match fused || !has_gates {
                true => &mut scratch.gated[..],
                false => &mut scratch.gate_up[..],
            },
        };
        let then = match fused {
            true => Then::Gated(spec.activation.of_gates()),
            false => Then::Store,
        };
        multiply_groups((&mut *pool, isa), &groups(&self.gate_up), gate_up, then)?;
        let inner = spec.intermediate;
        if !has_gates {
            let gated = &mut scratch.gated[..choices * inner];
            let activation = Activate(spec.activation.of_gates());
            activate_rows((&mut *pool, isa), gated, (choices, inner), &activation)?;
        } else if !fused {
            let gated = SharedSlice::new(&mut scratch.gated);
            let gate_up = &scratch.gate_up;
            for_rows(pool, choices, inner, |first, end| {
                isa.run(Gate {
                    activation: spec.activation,
                    gate_up: &gate_up[first * 2 * inner..end * 2 * inner],
                    inner,
                    // SAFETY: ranges of rows are disjoint.
                    gated: unsafe { gated.slice(first * inner, (end - first) * inner) },
                });
            })?;
        }
        let down = Io {
            rows: choices,
            input: &scratch.gated[..choices * inner],
            quantised,
            output: &mut scratch.sorted,
        };
        multiply_groups((&mut *pool, isa), &groups(&self.down), down, Then::Store)?;
        let output = SharedSlice::new(output);
        let (scratch, has_score) = (&*scratch, self.shared_score.is_some());
        for_rows(pool, rows, hidden * spec.per_token, |first, end| {
            for row in first..end {
                isa.run(AddUp {
                    has_shared: spec.adds_to_shared(),
                    shared_score: has_score.then(|| scratch.shared_scores[row]),
                    chosen: &scratch.chosen[row * spec.per_token..][..spec.per_token],
                    places: &scratch.places[row * spec.per_token..][..spec.per_token],
                    sorted: &scratch.sorted,
                    // SAFETY: ranges of rows are disjoint.
                    output: unsafe { output.slice(row * hidden, hidden) },
                });
            }
        })
    }

    /// Chooses each row's experts, and sorts choices by expert, those of an expert by row.
    fn route(
        &self,
        (pool, isa): (&mut Pool, Isa),
        spec: &ExpertsSpec,
        (rows, router, input): (usize, &[f32], &[f32]),
        quantised: &mut Activations,
        scratch: &mut ExpertScratch,
    ) -> Result<(), TaskPanic> {
        let linears = [
            (Some(&self.router), router, &mut scratch.scores),
            (
                self.shared_score.as_ref(),
                input,
                &mut scratch.shared_scores,
            ),
        ];
        for (linear, input, output) in linears {
            let Some(linear) = linear else { continue };
            let io = Io {
                rows,
                input,
                quantised: &mut *quantised,
                output,
            };
            linear.multiply((&mut *pool, isa), io, Then::Store, None)?;
        }
        let choices = rows * spec.per_token;
        scratch.chosen.clear();
        scratch.chosen.resize(choices, Choice::default());
        let chosen = SharedSlice::new(&mut scratch.chosen);
        let scores = SharedSlice::new(&mut scratch.scores);
        let of_experts = OfExperts {
            correction: self.correction.as_deref(),
            scales: self.scales.as_deref(),
        };
        for_rows(pool, rows, spec.experts * spec.per_token, |first, end| {
            for row in first..end {
                // SAFETY: ranges of rows are disjoint.
                let (scores, chosen) = unsafe {
                    (
                        scores.slice(row * spec.experts, spec.experts),
                        chosen.slice(row * spec.per_token, spec.per_token),
                    )
                };
                route(spec, scores, of_experts, chosen);
            }
        })?;
        let ends = &mut scratch.ends;
        ends.clear();
        ends.resize(spec.experts, 0);
        for choice in &scratch.chosen {
            ends[choice.expert as usize] += 1;
        }
        let mut start = 0;
        for end in ends.iter_mut() {
            start += std::mem::replace(end, start);
        }
        scratch.places.clear();
        scratch.places.extend(scratch.chosen.iter().map(|choice| {
            let end = &mut ends[choice.expert as usize];
            *end += 1;
            *end - 1
        }));
        Ok(())
    }

    /// The experts that rows go through, and their rows in the sorted order.
    fn groups<'a>(linears: &'a [Linear], ends: &[usize]) -> Vec<Group<'a>> {
        let starts = std::iter::once(&0).chain(ends);
        let all = linears.iter().zip(starts.zip(ends));
        let groups = all.map(|(linear, (start, end))| Group {
            linear,
            rows: *start..*end,
        });
        groups.filter(|group| !group.rows.is_empty()).collect()
    }
}

/// Gates rows of gate and up that lie one behind the other.
struct Gate<'a> {
    activation: ExpertActivation,
    /// `[rows][gate | up]`
    gate_up: &'a [f32],
    inner: usize,
    /// `[rows][inner]`
    gated: &'a mut [f32],
}

impl Kernel for Gate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let inner = self.inner;
        let rows = self.gate_up.chunks_exact(2 * inner);
        for (gate_up, out) in rows.zip(self.gated.chunks_exact_mut(inner)) {
            let (gate, up) = gate_up.split_at(inner);
            for first in (0..inner).step_by(S::LANES) {
                let count = S::LANES.min(inner - first);
                let mut padded = [[0.0; 16]; 2];
                padded[0][..count].copy_from_slice(&gate[first..][..count]);
                padded[1][..count].copy_from_slice(&up[first..][..count]);
                // SAFETY: no vector has more than 16 floats.
                unsafe {
                    let (gate, up) = (s.load(padded[0].as_ptr()), s.load(padded[1].as_ptr()));
                    s.store(padded[0].as_mut_ptr(), act(s, self.activation, gate, up));
                }
                out[first..][..count].copy_from_slice(&padded[0][..count]);
            }
        }
    }
}

#[inline(always)]
fn act<S: Simd>(s: S, activation: ExpertActivation, gate: S::F, up: S::F) -> S::F {
    let one = s.splat(1.0);
    let (gate, up, alpha) = match activation {
        ExpertActivation::GeGlu => return s.mul(math::gelu_tanh(s, gate), up),
        ExpertActivation::SwiGlu => (gate, up, one),
        ExpertActivation::Relu2 => unreachable!("no gates"),
        ExpertActivation::Clamped { limit, alpha } => {
            // The constants come first: `max` and `min` return their second argument for NaN.
            let (least, most) = (s.splat(-limit), s.splat(limit));
            let up = s.max(least, s.min(most, up));
            (s.min(most, gate), s.add(up, one), s.splat(alpha))
        }
    };
    let e = exp(s, s.sub(s.splat(0.0), s.mul(alpha, gate)));
    s.mul(s.div(gate, s.add(one, e)), up)
}

/// Adds up what a row's experts have put out.
struct AddUp<'a> {
    has_shared: bool,
    shared_score: Option<f32>,
    chosen: &'a [Choice],
    places: &'a [usize],
    sorted: &'a [f32],
    output: &'a mut [f32],
}

impl Kernel for AddUp<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let hidden = self.output.len();
        if !self.has_shared {
            self.output.fill(0.0);
        }
        if let Some(score) = self.shared_score {
            let e = exp(s, s.splat(-score));
            let share = s.first(s.div(s.splat(1.0), s.add(s.splat(1.0), e)));
            self.output.iter_mut().for_each(|x| *x *= share);
        }
        for (choice, place) in self.chosen.iter().zip(self.places) {
            let row = &self.sorted[place * hidden..][..hidden];
            let weight = s.splat(choice.weight);
            let mut out = self.output.chunks_exact_mut(S::LANES);
            let mut of_expert = row.chunks_exact(S::LANES);
            for (out, x) in (&mut out).zip(&mut of_expert) {
                // SAFETY: both have as many floats as a vector.
                unsafe {
                    let sum = s.fma(weight, s.load(x.as_ptr()), s.load(out.as_ptr()));
                    s.store(out.as_mut_ptr(), sum);
                }
            }
            for (out, x) in out.into_remainder().iter_mut().zip(of_expert.remainder()) {
                *out = s.first(s.fma(weight, s.splat(*x), s.splat(*out)));
            }
        }
    }
}
