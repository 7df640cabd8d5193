//! A linear layer on the CPU.

use std::ops::Range;

use super::gemm::{self, Epilogue, PANEL, PackedMatrix, Place, ROW_BLOCK};
use super::packed::{self, Activations};
use super::prefetch::StartOfNext;
use super::shared::SharedSlice;
use super::simd::{DotSet, Isa};
use super::threads::{Items, Pool, TaskPanic};
use crate::model::Activation;
use crate::weight_formats::WeightFormat;

/// `y = W x + b`, in parts: tensors that are packed, and tensors in bf16.
#[derive(Debug, Default)]
pub(super) struct Linear {
    inputs: usize,
    outputs: usize,
    expanded: Vec<Expanded>,
    packed: Vec<packed::Part>,
}

/// Neighbouring outputs with bf16 weights.
#[derive(Debug)]
struct Expanded {
    first: usize,
    weight: PackedMatrix,
    /// Padded to whole panels.
    bias: Option<Vec<f32>>,
}

/// What becomes of the outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// They are stored.
    Store,
    /// They are added to what is there, without a bias.
    Add,
    /// They are gate and up: `activation(gate) * up` is stored.
    Gated(Activation),
}

impl Then {
    /// What opens gates, where there are any.
    fn activation(self) -> Activation {
        match self {
            Self::Gated(activation) => activation,
            Self::Store | Self::Add => Activation::default(),
        }
    }
}

/// What a product reads and writes, and what it needs besides.
pub(super) struct Io<'a> {
    pub(super) rows: usize,
    pub(super) input: &'a [f32],
    /// Room for the input, quantised.
    pub(super) quantised: &'a mut Activations,
    pub(super) output: &'a mut [f32],
}

impl Linear {
    /// Without outputs yet.
    pub(super) fn new(inputs: usize) -> Self {
        Self {
            inputs,
            ..Self::default()
        }
    }

    /// Appends outputs with bf16 weights and a bias as long as they are.
    pub(super) fn push_expanded(&mut self, weight: PackedMatrix, bias: Option<Vec<f32>>) {
        let first = self.outputs;
        self.outputs += weight.outputs();
        let bias = bias.map(|mut bias| {
            bias.resize(weight.panels() * PANEL, 0.0);
            bias
        });
        self.expanded.push(Expanded {
            first,
            weight,
            bias,
        });
    }

    /// Appends outputs with packed weights and a bias as long as they are.
    pub(super) fn push_packed(&mut self, weights: packed::Weights, bias: Option<Vec<f32>>) {
        let part = packed::Part::new(self.outputs, weights, bias);
        self.outputs += part.outputs();
        self.packed.push(part);
    }

    /// Inputs of the product.
    pub(super) fn inputs(&self) -> usize {
        self.inputs
    }

    /// Bytes of the weights, which a product reads all; of bf16 weights without padding.
    pub(super) fn bytes(&self) -> usize {
        self.bytes_by_format().map(|(_, bytes)| bytes).sum()
    }

    /// Bytes of each tensor or part, and its format if it is packed.
    pub(super) fn bytes_by_format(&self) -> impl Iterator<Item = (Option<WeightFormat>, usize)> {
        let expanded = self.expanded.iter().map(|part| {
            let columns = if part.weight.is_gated() { 2 } else { 1 };
            (
                None,
                2 * part.weight.inner() * part.weight.outputs() * columns,
            )
        });
        let packed = self.packed.iter().flat_map(packed::Part::matrices);
        expanded.chain(packed.map(|matrix| (Some(matrix.format()), matrix.len())))
    }

    /// Inputs of products that quantise them; 0 if this one does not.
    pub(super) fn quantised_inputs(&self) -> usize {
        match packed::needs_quantised(&self.packed) {
            true => self.inputs,
            false => 0,
        }
    }

    /// The weights of one output, as many floats as there are inputs: the embedding of a token
    /// where the two are tied.
    pub(super) fn column(&self, output: usize, out: &mut [f32]) {
        for part in &self.expanded {
            let within = output.checked_sub(part.first);
            if let Some(at) = within.filter(|at| *at < part.weight.outputs()) {
                return part.weight.column(at, out);
            }
        }
        for part in &self.packed {
            let within = output.checked_sub(part.first);
            if let Some(at) = within.filter(|at| *at < part.outputs()) {
                return part.matrices()[0].row(at, out);
            }
        }
        unreachable!("output {output} of {}", self.outputs)
    }

    /// Where a thread's share of the weights begins.
    fn start_of_share(&self, share: &Items<'_>) -> *const u8 {
        match self.expanded.first() {
            Some(part) => part.weight.start_of_share(share),
            None => packed::start_of_share(&self.packed, share),
        }
    }

    /// Multiplies rows; `next` is multiplied with after that, so memory fetches it meanwhile.
    pub(super) fn multiply(
        &self,
        (pool, isa): (&mut Pool, Isa),
        io: Io<'_>,
        then: Then,
        next: Option<&Linear>,
    ) -> Result<(), TaskPanic> {
        let (rows, input) = (io.rows, io.input);
        let start_of_next = next.map(|next| move |share: &Items<'_>| next.start_of_share(share));
        let start_of_next = start_of_next.as_ref().map(|start| start as StartOfNext<'_>);
        for (index, part) in self.expanded.iter().enumerate() {
            let product = gemm::Product {
                rows,
                a: input,
                w: &part.weight,
                epilogue: epilogue(then, part.bias.as_deref()),
                next: None,
            };
            let place = Place {
                first: part.first,
                stride: self.outputs,
            };
            let is_last = self.packed.is_empty() && index + 1 == self.expanded.len();
            let next = start_of_next.filter(|_| is_last);
            product.run_to(pool, isa, (&mut *io.output, place), next)?;
        }
        if self.packed.is_empty() {
            return Ok(());
        }
        if packed::needs_quantised(&self.packed) {
            let on = (&mut *pool, isa);
            io.quantised.quantise(on, rows, self.inputs, input)?;
        }
        let product = packed::Product {
            rows,
            a: input,
            quantised: io.quantised,
            parts: &self.packed,
            stride: self.outputs,
            add: then == Then::Add,
            activation: then.activation(),
        };
        product.run_with(pool, DotSet::of(isa), io.output, start_of_next)
    }
}

/// Rows that a linear layer of a group multiplies.
pub(super) struct Group<'a> {
    pub(super) linear: &'a Linear,
    pub(super) rows: Range<usize>,
}

/// Part of the work on a group: some rows, and panels of a part of the layer.
struct Task {
    group: usize,
    /// Of the expanded parts; behind them, all that are packed together.
    part: usize,
    rows: (usize, usize),
    panels: (usize, usize),
}

/// The products of groups.
struct Products<'a> {
    rows: usize,
    input: &'a [f32],
    quantised: &'a Activations,
    stride: usize,
    then: Then,
}

impl<'a> Products<'a> {
    fn expanded(&self, group: &Group<'a>, part: usize) -> (gemm::Product<'a>, Place) {
        let part = &group.linear.expanded[part];
        let product = gemm::Product {
            rows: self.rows,
            a: self.input,
            w: &part.weight,
            epilogue: epilogue(self.then, part.bias.as_deref()),
            next: None,
        };
        let place = Place {
            first: part.first,
            stride: self.stride,
        };
        (product, place)
    }

    fn packed(&self, group: &Group<'a>) -> packed::Product<'a> {
        packed::Product {
            rows: self.rows,
            a: self.input,
            quantised: self.quantised,
            parts: &group.linear.packed,
            stride: self.stride,
            add: self.then == Then::Add,
            activation: self.then.activation(),
        }
    }
}

/// Multiplies every group's rows with its own layer, all at once. The layers are of one shape; no
/// two groups share a row.
pub(super) fn multiply_groups(
    (pool, isa): (&mut Pool, Isa),
    groups: &[Group<'_>],
    io: Io<'_>,
    then: Then,
) -> Result<(), TaskPanic> {
    let Some(first) = groups.first() else {
        return Ok(());
    };
    let (inputs, stride) = (first.linear.inputs, first.linear.outputs);
    if groups.iter().any(|g| g.linear.quantised_inputs() > 0) {
        io.quantised
            .quantise((&mut *pool, isa), io.rows, inputs, io.input)?;
    }
    let products = Products {
        rows: io.rows,
        input: io.input,
        quantised: io.quantised,
        stride,
        then,
    };
    let mut total = 0;
    for (index, group) in groups.iter().enumerate() {
        assert_eq!(
            (group.linear.inputs, group.linear.outputs),
            (inputs, stride)
        );
        let before = index
            .checked_sub(1)
            .map_or(0, |before| groups[before].rows.end);
        assert!(
            before <= group.rows.start && group.rows.end <= products.rows,
            "rows are of one group"
        );
        for part in 0..group.linear.expanded.len() {
            let (product, place) = products.expanded(group, part);
            product.check(io.output.len(), place);
            total += product.w.panels() * group.rows.len().div_ceil(ROW_BLOCK);
        }
        if !group.linear.packed.is_empty() {
            products.packed(group).check(io.output.len());
            total += products.packed(group).pairs() * group.rows.len().div_ceil(ROW_BLOCK);
        }
    }
    let by_balance = (total / (pool.threads() * 16)).max(1);
    let mut tasks = Vec::new();
    for (index, group) in groups.iter().enumerate() {
        let mut push = |part: usize, panels: usize, by_cache: usize| {
            let blocks = group.rows.len().div_ceil(ROW_BLOCK);
            let chunk = match blocks {
                0 | 1 => by_balance,
                _ => by_balance.min(by_cache),
            };
            for first in (0..panels).step_by(chunk) {
                tasks.extend((0..blocks).map(|block| {
                    let at = |block: usize| group.rows.start + block * group.rows.len() / blocks;
                    Task {
                        group: index,
                        part,
                        rows: (at(block), at(block + 1)),
                        panels: (first, panels.min(first + chunk)),
                    }
                }));
            }
        };
        for part in 0..group.linear.expanded.len() {
            let (product, _) = products.expanded(group, part);
            push(part, product.w.panels(), product.panels_per_chunk());
        }
        if !group.linear.packed.is_empty() {
            let product = products.packed(group);
            let parts = group.linear.expanded.len();
            push(parts, product.pairs(), product.pairs_per_chunk());
        }
    }
    let out = SharedSlice::new(io.output);
    let dots = DotSet::of(isa);
    pool.run(tasks.len(), |index, _| {
        let task = &tasks[index];
        let group = &groups[task.group];
        if task.part < group.linear.expanded.len() {
            let (product, place) = products.expanded(group, task.part);
            product.chunk(isa, task.rows, task.panels, (out, place));
        } else {
            products
                .packed(group)
                .chunk(dots, task.rows, task.panels, out);
        }
    })
}

fn epilogue(then: Then, bias: Option<&[f32]>) -> Epilogue<'_> {
    match (then, bias) {
        (Then::Store, Some(bias)) => Epilogue::Bias(bias),
        (Then::Store, None) => Epilogue::Store,
        (Then::Add, None) => Epilogue::Add,
        (Then::Gated(activation), None) => Epilogue::Gated(activation),
        (Then::Add | Then::Gated(_), Some(_)) => unreachable!("the program fuses no biases"),
    }
}
