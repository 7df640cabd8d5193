//! The tensors that a quantised one is made of.

use safetensors::Dtype;

use crate::model::error::Refusal;
use crate::model::hf::shards::{Shards, StoredTensor, TensorBytes};

/// The tensors of one module, by what follows its name.
pub(super) struct Parts<'a> {
    shards: &'a Shards,
    module: &'a str,
    /// Of the weight: `[outputs, inputs]`.
    pub(super) shape: [usize; 2],
    /// How many matrices of the same number of outputs are in one.
    pub(super) stacked: usize,
    taken: Vec<String>,
}

impl<'a> Parts<'a> {
    pub(super) fn new(
        shards: &'a Shards,
        module: &'a str,
        shape: [usize; 2],
        stacked: usize,
    ) -> Self {
        Self {
            shards,
            module,
            shape,
            stacked,
            taken: Vec::new(),
        }
    }

    /// The full name of a part. Those of stacked matrices have no `weight` in them.
    pub(super) fn name(&self, part: &str) -> String {
        match part.strip_prefix("weight") {
            Some(part) if self.stacked > 1 => format!("{}{part}", self.module),
            _ => format!("{}.{part}", self.module),
        }
    }

    /// A shape whose first dimension is the outputs, with a dimension for what is stacked.
    pub(super) fn stack(&self, shape: &[usize]) -> Vec<usize> {
        match self.stacked {
            1 => shape.to_vec(),
            stacked => [&[stacked, shape[0] / stacked], &shape[1..]].concat(),
        }
    }

    pub(super) fn get(&self, part: &str) -> Option<&'a StoredTensor> {
        self.shards.get(&self.name(part))
    }

    /// The names of all parts that were read.
    pub(super) fn taken(self) -> Vec<String> {
        self.taken
    }

    /// A part of any shape, in one of `types`.
    pub(super) fn take(
        &mut self,
        part: &str,
        types: &[Dtype],
    ) -> Result<(&'a StoredTensor, TensorBytes), Refusal> {
        let name = self.name(part);
        let Some(stored) = self.shards.get(&name) else {
            return Err(Refusal::MissingTensor(name));
        };
        if !types.contains(&stored.dtype) {
            let supported: Vec<_> = types.iter().map(|dtype| format!("{dtype:?}")).collect();
            return Err(Refusal::unsupported(
                format!("{name}.dtype"),
                format!("{:?}", stored.dtype),
                &supported.join(", "),
            ));
        }
        self.taken.push(name);
        Ok((stored, self.shards.bytes(stored)))
    }

    /// A part of the first of `shapes`, or of another one of them.
    pub(super) fn take_shaped(
        &mut self,
        part: &str,
        types: &[Dtype],
        shapes: &[&[usize]],
    ) -> Result<(Dtype, TensorBytes), Refusal> {
        let (stored, bytes) = self.take(part, types)?;
        if shapes.contains(&stored.shape.as_slice()) {
            return Ok((stored.dtype, bytes));
        }
        Err(Refusal::Shape {
            tensor: self.name(part),
            found: stored.shape.clone(),
            expected: shapes[0].to_vec(),
        })
    }

    /// Refuses zeros where the settings say that there are none.
    pub(super) fn has_no_zeros(&self, part: &str) -> Result<(), Refusal> {
        match self.get(part) {
            None => Ok(()),
            Some(_) => Err(Refusal::Contradiction {
                tensor: self.name(part),
                problem: "has zeros, but `quantization_config` says that codes have none"
                    .to_owned(),
            }),
        }
    }

    /// Whole numbers of 32 bits.
    pub(super) fn take_words(&mut self, part: &str, shape: &[usize]) -> Result<Words, Refusal> {
        let types = [Dtype::I32, Dtype::U32];
        Ok(Words(self.take_shaped(part, &types, &[shape])?.1))
    }

    /// How many words hold the `length` codes of `bits` in a dimension of the weight, which has to
    /// be a whole number of them.
    pub(super) fn words(&self, what: &str, length: usize, bits: usize) -> Result<usize, Refusal> {
        let each = 32 / bits;
        if length.is_multiple_of(each) {
            return Ok(length / each);
        }
        let field = format!("the number of {what} of {}", self.name("weight"));
        let expected = format!("a multiple of {each}, the codes of {bits} bits in a word");
        Err(Refusal::invalid(field, length, expected))
    }
}

/// Words of 32 bits, stored little-endian.
#[derive(Clone, Debug)]
pub(super) struct Words(TensorBytes);

impl Words {
    pub(super) fn all(&self) -> &[[u8; 4]] {
        self.0.as_chunks().0
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The `bits` of a word from `place · bits` on.
    pub(super) fn code(&self, word: usize, place: usize, bits: usize) -> u32 {
        let word = u32::from_le_bytes(self.all()[word]);
        word >> (place * bits) & ((1 << bits) - 1)
    }
}
