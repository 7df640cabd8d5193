//! How checkpoints store tensors.

use ebb_kernels::model::{LayerTensor, Mixer, ModelSpec, RecurrentSpec, TensorName};

use super::row_order::RowOrder;

/// A tensor as a checkpoint stores it: under a name, by itself or in a larger one, or in a tensor
/// for each expert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredTensor {
    /// With [`EXPERT`] for the number of the expert, where each has a tensor of its own.
    pub(crate) name: String,
    /// The tensors that are stored together under that name, if there are several.
    parts: Vec<TensorName>,
    tensor: TensorName,
    heads: Heads,
    layout: Layout,
    /// Where some files have it instead.
    pub(crate) other: Option<Box<Self>>,
}

/// How heads lie in a checkpoint, as far as a tensor has any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heads {
    /// As in the model.
    Plain,
    /// Heads of queries and keys rotate pairs of neighbouring channels.
    Interleaved,
    /// Value heads of the delta rule lie in turn: the first of each key head, then the second of
    /// each.
    InTurn,
}

/// What of an expert lies together where not all by itself.
pub(crate) const GATE_UP: &[LayerTensor] = &[LayerTensor::ExpertGate, LayerTensor::ExpertUp];

/// Stands in a name for the number of an expert.
const EXPERT: &str = "*";

/// What stands in its place in names of what the delta rule has of queries, keys and values.
const PROJECTIONS: [&str; 3] = ["q", "k", "v"];

/// How tensors lie under a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// One behind the other.
    Rows,
    /// Each expert has a stored tensor.
    OfEachExpert,
    /// For each expert, its rows of one part behind those of the other.
    ByExpert,
    /// For each expert, rows of the parts in turn. Plain matrices are transposed.
    InTurn,
    /// For each expert a transposed matrix: its columns of one part behind those of the other.
    Columns,
    /// A vector that is one of two rows: rounded to bf16, and what that leaves.
    InHalves,
    /// For each group of heads, its rows of one part behind those of the other: for each query
    /// head, or for each key head of the delta rule.
    ByHead,
    /// A vector of Mamba-2's channels, as a matrix with a row for each group of heads.
    ByGroup,
    /// Rows of a convolution, which are matrices of one row each.
    Taps,
    /// As [`Self::Taps`], in a tensor each for queries, keys and values of the delta rule.
    TapsByProjection,
    /// Not at all: every value is 1.
    Ones,
    /// In the metadata of a GGUF file, whose list of that name has a number for each layer.
    Metadata,
}

/// Where outputs of a tensor lie that are columns of what is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Columns {
    /// The first of them.
    pub(crate) first: usize,
    /// From each to the next.
    pub(crate) step: usize,
    /// How many columns the stored matrices have.
    pub(crate) all: usize,
}

/// Rows of a stored tensor that are neighbours in one of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    /// The stored one.
    pub(crate) name: String,
    /// The first of its rows.
    pub(crate) first: usize,
    /// From each row to the next.
    pub(crate) step: usize,
    pub(crate) count: usize,
}

impl StoredTensor {
    /// By itself.
    pub(crate) fn own(tensor: TensorName, name: impl Into<String>) -> Self {
        use LayerTensor as L;
        let layout = match tensor {
            TensorName::Layer(
                _,
                L::RouterCorrection
                | L::DeltaDecay
                | L::DeltaDecayBias
                | L::MambaDecay
                | L::MambaDtBias,
            ) => Layout::InHalves,
            TensorName::Layer(_, L::DeltaConv | L::MambaConv | L::Conv) => Layout::Taps,
            _ => Layout::Rows,
        };
        Self {
            name: name.into(),
            parts: vec![tensor],
            tensor,
            heads: Heads::Plain,
            layout,
            other: None,
        }
    }

    /// By itself, in the model's shape: GGUF files have rows of a convolution as a matrix.
    pub(super) fn own_matrix(tensor: TensorName, name: String) -> Self {
        let own = Self::own(tensor, name);
        match own.layout {
            Layout::Taps => Self {
                layout: Layout::Rows,
                ..own
            },
            _ => own,
        }
    }

    /// Nowhere: every value is 1, as of a norm without weights.
    pub(crate) fn ones(tensor: TensorName) -> Self {
        Self {
            layout: Layout::Ones,
            // No file has such a name.
            ..Self::own(tensor, tensor.to_string())
        }
    }

    /// Whether nothing is stored, since every value is 1.
    pub(crate) fn is_ones(&self) -> bool {
        self.layout == Layout::Ones
    }

    /// A number of a layer in the metadata of a GGUF file, whose list `name` has those of all.
    pub(crate) fn in_metadata(tensor: TensorName, name: &str) -> Self {
        Self {
            layout: Layout::Metadata,
            ..Self::own(tensor, name)
        }
    }

    /// The list in the metadata of a GGUF file that has it, and its place there, if it lies so.
    pub(crate) fn number_of_layer(&self) -> Option<(&str, usize)> {
        match (self.layout, self.tensor) {
            (Layout::Metadata, TensorName::Layer(layer, _)) => Some((&self.name, layer)),
            _ => None,
        }
    }

    /// As rows of `name`, which holds `parts` of the same layer one behind the other.
    pub(crate) fn part(tensor: TensorName, name: String, parts: &[LayerTensor]) -> Self {
        Self::together(tensor, name, parts, Layout::Rows)
    }

    /// In a tensor for each expert, whose name has `*` for its number.
    pub(crate) fn of_each_expert(tensor: TensorName, name: String) -> Self {
        Self {
            layout: Layout::OfEachExpert,
            ..Self::own(tensor, name)
        }
    }

    /// The convolution of the delta rule, in a tensor each for queries, keys and values, whose name
    /// has `*` for which.
    pub(crate) fn taps_by_projection(tensor: TensorName, name: String) -> Self {
        Self {
            layout: Layout::TapsByProjection,
            ..Self::own(tensor, name)
        }
    }

    /// As `part` of a layer, with `*` for the number of an expert where each has its own.
    pub(crate) fn of_layer(tensor: TensorName, layer: usize, part: &str) -> Self {
        let name = format!("model.layers.{layer}.{part}");
        match part.contains(EXPERT) {
            true => Self::of_each_expert(tensor, name),
            false => Self::own(tensor, name),
        }
    }

    /// How a tensor of each expert is stored where all of a layer's lie in one: gate and up one
    /// behind the other.
    pub(crate) fn of_all_experts(&self) -> Option<Self> {
        let (TensorName::Layer(_, part), Layout::OfEachExpert) = (self.tensor, self.layout) else {
            return None;
        };
        let name = self.name.strip_suffix(".weight")?;
        let name = name.replace(&format!("{EXPERT}."), "");
        match part {
            LayerTensor::ExpertGate | LayerTensor::ExpertUp => {
                let (layer, _) = name.rsplit_once('.')?;
                let name = format!("{layer}.gate_up_proj");
                Some(Self::by_expert(self.tensor, name, GATE_UP))
            }
            LayerTensor::ExpertDown => Some(Self::own(self.tensor, name)),
            _ => None,
        }
    }

    /// As rows of `name`, which holds for each expert `parts` of the same layer one behind the
    /// other.
    pub(crate) fn by_expert(tensor: TensorName, name: String, parts: &[LayerTensor]) -> Self {
        Self::together(tensor, name, parts, Layout::ByExpert)
    }

    /// As rows of `name`, which holds for each query head, or for each key head of the delta rule,
    /// `parts` of the same layer one behind the other.
    pub(crate) fn by_head(tensor: TensorName, name: String, parts: &[LayerTensor]) -> Self {
        Self::together(tensor, name, parts, Layout::ByHead)
    }

    /// In `name`, a matrix with a row for each group of Mamba-2's heads: the vector in order.
    pub(crate) fn by_group(tensor: TensorName, name: String) -> Self {
        Self {
            layout: Layout::ByGroup,
            ..Self::own(tensor, name)
        }
    }

    /// In `name`, whose outputs belong to `parts` of the same layer in turn: columns of a matrix
    /// for each expert, `[experts, inputs, outputs]`, or rows where they are quantised.
    pub(crate) fn in_turn(tensor: TensorName, name: String, parts: &[LayerTensor]) -> Self {
        Self::together(tensor, name, parts, Layout::InTurn)
    }

    /// In `name`, which holds for each expert a transposed matrix, `[inputs, outputs]`: its outputs
    /// belong to `parts` of the same layer, one behind the other.
    pub(crate) fn by_columns(tensor: TensorName, name: String, parts: &[LayerTensor]) -> Self {
        Self::together(tensor, name, parts, Layout::Columns)
    }

    fn together(tensor: TensorName, name: String, parts: &[LayerTensor], layout: Layout) -> Self {
        let TensorName::Layer(layer, _) = tensor else {
            unreachable!("only tensors of layers are stored together");
        };
        let parts = parts.iter().map(|part| TensorName::Layer(layer, *part));
        Self {
            name,
            parts: parts.collect(),
            tensor,
            heads: Heads::Plain,
            layout,
            other: None,
        }
    }

    /// In the order of a checkpoint whose RoPE rotates pairs of neighbouring channels, as far as it
    /// is of queries and keys: rows are put into half-split order as they are read.
    pub(crate) fn interleaved(self) -> Self {
        Self {
            heads: Heads::Interleaved,
            ..self
        }
    }

    /// In some files as `other` says instead.
    pub(crate) fn or(self, other: Option<Self>) -> Self {
        Self {
            other: other.map(Box::new),
            ..self
        }
    }

    /// In the order of a checkpoint whose value heads of the delta rule lie in turn: the first of
    /// each key head, then the second of each.
    pub(crate) fn heads_in_turn(self) -> Self {
        Self {
            heads: Heads::InTurn,
            ..self
        }
    }

    /// Where the rows lie, or the values of a vector, if not as in the model.
    pub(crate) fn order(&self, spec: &ModelSpec) -> Option<RowOrder> {
        use LayerTensor as L;
        let TensorName::Layer(layer, tensor) = self.tensor else {
            return None;
        };
        match (self.heads, tensor) {
            (Heads::Interleaved, L::Q | L::K | L::QBias | L::KBias) => {
                Some(RowOrder::of(spec, layer))
            }
            (Heads::InTurn, L::DeltaV | L::DeltaZ) => {
                RowOrder::in_turn(spec, layer, |delta| (0, delta.v_dim))
            }
            (Heads::InTurn, L::DeltaB | L::DeltaA | L::DeltaDecay | L::DeltaDecayBias) => {
                RowOrder::in_turn(spec, layer, |_| (0, 1))
            }
            (Heads::InTurn, L::DeltaConv) => {
                RowOrder::in_turn(spec, layer, |delta| (2 * delta.k_width(), delta.v_dim))
            }
            _ => None,
        }
    }

    /// Where the columns lie, if not as in the model.
    pub(crate) fn column_order(&self, spec: &ModelSpec) -> Option<RowOrder> {
        match (self.heads, self.tensor) {
            (Heads::InTurn, TensorName::Layer(layer, LayerTensor::DeltaOut)) => {
                RowOrder::in_turn(spec, layer, |delta| (0, delta.v_dim))
            }
            _ => None,
        }
    }

    /// The names of all that are stored, of which there are several where each expert has its own.
    pub(crate) fn names(&self, spec: &ModelSpec) -> Vec<String> {
        match self.layout {
            Layout::OfEachExpert => {
                let experts = 0..self.tensor.shape(spec)[0];
                experts.map(|expert| self.name_of(expert)).collect()
            }
            Layout::TapsByProjection => {
                let names = PROJECTIONS.iter();
                names.map(|part| self.name.replace(EXPERT, part)).collect()
            }
            Layout::Ones | Layout::Metadata => Vec::new(),
            _ => vec![self.name.clone()],
        }
    }

    /// The name of an expert's, or the only one.
    pub(crate) fn name_of(&self, expert: usize) -> String {
        match self.layout {
            Layout::OfEachExpert => self.name.replace(EXPERT, &expert.to_string()),
            _ => self.name.clone(),
        }
    }

    /// The shape of what is stored under one of the names.
    pub(crate) fn shape_of(&self, spec: &ModelSpec, name: usize) -> Vec<usize> {
        let mut shape = self.shape(spec);
        if self.layout == Layout::TapsByProjection {
            shape[0] = projection_rows(spec, self.tensor)[name];
        }
        shape
    }

    /// The shape of what is stored under a name, or of all together where names differ.
    pub(crate) fn shape(&self, spec: &ModelSpec) -> Vec<usize> {
        let mut shape = self.tensor.shape(spec);
        let outputs = |at: usize| self.parts.iter().map(|part| part.shape(spec)[at]).sum();
        match (self.layout, shape.len()) {
            (Layout::Ones | Layout::Metadata, _) => {}
            (Layout::Rows | Layout::ByHead, _) => shape[0] = outputs(0),
            (Layout::Taps | Layout::TapsByProjection, _) => shape.insert(1, 1),
            (Layout::ByGroup, _) => {
                let groups = groups_of(spec, self.tensor);
                shape = vec![groups, shape[0] / groups];
            }
            (Layout::OfEachExpert | Layout::InHalves, _) => {
                shape.remove(0);
            }
            (Layout::ByExpert, _) | (Layout::InTurn, 2) => shape[1] = outputs(1),
            (Layout::InTurn | Layout::Columns, _) => {
                shape[1] = outputs(1);
                shape.swap(1, 2);
            }
        }
        shape
    }

    /// Matrices of this tensor's, the rows and the columns of all that are stored under a name if
    /// they lie by rows: as quantised ones do.
    pub(crate) fn stacked(&self, spec: &ModelSpec) -> Option<[usize; 3]> {
        if [Layout::Columns, Layout::TapsByProjection].contains(&self.layout) {
            return None;
        }
        let mut shape = self.shape(spec);
        if self.layout == Layout::InTurn && shape.len() == 3 {
            shape.swap(1, 2);
        }
        match shape[..] {
            [rows, columns] => Some([1, rows, columns]),
            [experts, rows, columns] => Some([experts, rows, columns]),
            _ => None,
        }
    }

    /// The first of the tensor's rows.
    pub(crate) fn first_row(&self, spec: &ModelSpec) -> usize {
        self.before(spec, 0)
    }

    /// How many of the parts' outputs, in dimension `at`, come before those of the tensor.
    fn before(&self, spec: &ModelSpec, at: usize) -> usize {
        let before = self.parts.iter().take_while(|part| **part != self.tensor);
        before.map(|part| part.shape(spec)[at]).sum()
    }

    /// Where `count` rows of the tensor lie from `first` on, by rows of what is stored. Those of
    /// stacked matrices are counted through.
    pub(crate) fn runs(&self, spec: &ModelSpec, first: usize, count: usize) -> Vec<Run> {
        let run = |name, first, step, count| Run {
            name,
            first,
            step,
            count,
        };
        let name = self.name.clone();
        let order = self.order(spec);
        match self.layout {
            Layout::Ones | Layout::Metadata => Vec::new(),
            Layout::Columns => unreachable!("no rows of what is stored"),
            Layout::Rows if order.is_some() => {
                let before = self.first_row(spec);
                let rows = (first..first + count).filter_map(|row| Some(order?.stored(row)));
                let mut runs: Vec<Run> = Vec::new();
                for row in rows.map(|row| before + row) {
                    match runs.last_mut() {
                        Some(last) if last.first + last.count == row => last.count += 1,
                        _ => runs.push(run(name.clone(), row, 1, 1)),
                    }
                }
                runs
            }
            Layout::Rows | Layout::InHalves | Layout::ByGroup | Layout::Taps => {
                vec![run(name, first + self.first_row(spec), 1, count)]
            }
            Layout::InTurn => {
                let parts = self.parts.len();
                let part = self.parts.iter().take_while(|p| **p != self.tensor).count();
                vec![run(name, first * parts + part, parts, count)]
            }
            Layout::TapsByProjection => {
                let mut runs = Vec::new();
                let mut before = 0;
                for (name, rows) in self
                    .names(spec)
                    .into_iter()
                    .zip(projection_rows(spec, self.tensor))
                {
                    let begin = first.clamp(before, before + rows);
                    let end = (first + count).clamp(before, before + rows);
                    if begin < end {
                        runs.push(run(name, begin - before, 1, end - begin));
                    }
                    before += rows;
                }
                runs
            }
            Layout::OfEachExpert | Layout::ByExpert | Layout::ByHead => {
                let (each, before, stride) = match self.layout {
                    Layout::ByExpert => {
                        let each = self.tensor.shape(spec)[1];
                        (each, self.before(spec, 1), self.shape(spec)[1])
                    }
                    Layout::ByHead => {
                        let heads = heads_of(spec, self.tensor);
                        let rows = self.tensor.shape(spec)[0];
                        let all = [rows, self.before(spec, 0), self.shape(spec)[0]];
                        let [each, before, stride] = all.map(|rows| rows / heads);
                        (each, before, stride)
                    }
                    _ => (self.tensor.shape(spec)[1], 0, 0),
                };
                let mut runs = Vec::new();
                let (mut row, end) = (first, first + count);
                while row < end {
                    let (expert, within) = (row / each, row % each);
                    let count = (each - within).min(end - row);
                    let first = expert * stride + before + within;
                    runs.push(run(self.name_of(expert), first, 1, count));
                    row += count;
                }
                runs
            }
        }
    }

    /// Whether the tensor has two rows for what is stored: rounded to bf16, and what that leaves.
    pub(crate) fn is_in_halves(&self) -> bool {
        self.layout == Layout::InHalves
    }

    /// Of a tensor whose outputs are columns of what is stored unless that is quantised: where they
    /// lie.
    pub(crate) fn columns(&self, spec: &ModelSpec) -> Option<Columns> {
        let all = || self.parts.iter().map(|part| part.shape(spec)[1]).sum();
        match self.layout {
            Layout::InTurn => Some(Columns {
                first: self.parts.iter().take_while(|p| **p != self.tensor).count(),
                step: self.parts.len(),
                all: all(),
            }),
            Layout::Columns => Some(Columns {
                first: self.before(spec, 1),
                step: 1,
                all: all(),
            }),
            _ => None,
        }
    }
}

/// The groups of heads that rows of a tensor lie by.
fn heads_of(spec: &ModelSpec, tensor: TensorName) -> usize {
    let TensorName::Layer(layer, _) = tensor else {
        unreachable!("only tensors of layers lie by head");
    };
    match &spec.layers[layer].mixer {
        Mixer::Attention(attention) => attention.q_heads,
        Mixer::Recurrent(RecurrentSpec::GatedDelta(delta)) => delta.k_heads,
        Mixer::Recurrent(RecurrentSpec::Mamba2(_) | RecurrentSpec::ShortConv(_)) | Mixer::None => {
            unreachable!("no key heads")
        }
    }
}

/// The groups of heads of Mamba-2 in the layer of a tensor.
fn groups_of(spec: &ModelSpec, tensor: TensorName) -> usize {
    let TensorName::Layer(layer, _) = tensor else {
        unreachable!("only tensors of layers lie by group");
    };
    match spec.layers[layer].recurrent() {
        Some(RecurrentSpec::Mamba2(mamba)) => mamba.groups,
        _ => unreachable!("only Mamba-2 has groups"),
    }
}

/// Channels of queries, of keys and of values of the delta rule in the layer of a tensor.
fn projection_rows(spec: &ModelSpec, tensor: TensorName) -> [usize; 3] {
    let TensorName::Layer(layer, _) = tensor else {
        unreachable!("only tensors of layers lie by projection");
    };
    match &spec.layers[layer].mixer {
        Mixer::Recurrent(RecurrentSpec::GatedDelta(delta)) => {
            [delta.k_width(), delta.k_width(), delta.v_width()]
        }
        _ => unreachable!("only the delta rule convolves projections"),
    }
}
