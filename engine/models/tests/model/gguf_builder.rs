//! Writes GGUF files, right ones and wrong ones.

use ebb_models::model::FileBytes;
use ebb_models::model::gguf::{GgmlType, GgufError, GgufFile};

/// A metadata value to write.
#[derive(Clone)]
pub(crate) enum Value {
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    /// A type id and the bytes after it, for what no writer should write.
    Raw(u32, Vec<u8>),
}

/// A tensor to write.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    /// Slowest dimension first.
    pub(crate) shape: Vec<u64>,
    pub(crate) type_id: u32,
    pub(crate) data: Vec<u8>,
    /// Written instead of the true offset.
    pub(crate) offset: Option<u64>,
}

/// A GGUF file in the making.
#[derive(Clone)]
pub(crate) struct GgufBuilder {
    pub(crate) version: u32,
    pub(crate) entries: Vec<(String, Value)>,
    pub(crate) tensors: Vec<Tensor>,
    /// Written instead of the true counts.
    pub(crate) tensor_count: Option<u64>,
    pub(crate) entry_count: Option<u64>,
    pub(crate) alignment: u64,
}

impl Default for GgufBuilder {
    fn default() -> Self {
        Self {
            version: 3,
            entries: Vec::new(),
            tensors: Vec::new(),
            tensor_count: None,
            entry_count: None,
            alignment: 32,
        }
    }
}

impl GgufBuilder {
    pub(crate) fn set(&mut self, key: &str, value: Value) -> &mut Self {
        self.entries.retain(|(existing, _)| existing != key);
        self.entries.push((key.to_owned(), value));
        self
    }

    pub(crate) fn text(&mut self, key: &str, value: &str) -> &mut Self {
        self.set(key, Value::Text(value.to_owned()))
    }

    pub(crate) fn u32(&mut self, key: &str, value: u32) -> &mut Self {
        self.set(key, Value::U32(value))
    }

    pub(crate) fn f32(&mut self, key: &str, value: f32) -> &mut Self {
        self.set(key, Value::F32(value))
    }

    pub(crate) fn remove(&mut self, key: &str) -> &mut Self {
        self.entries.retain(|(existing, _)| existing != key);
        self
    }

    /// Adds a tensor of already encoded data.
    pub(crate) fn tensor(
        &mut self,
        name: &str,
        shape: &[usize],
        kind: GgmlType,
        data: Vec<u8>,
    ) -> &mut Self {
        self.tensors.push(Tensor {
            name: name.to_owned(),
            shape: shape.iter().map(|&size| size as u64).collect(),
            type_id: kind.id(),
            data,
            offset: None,
        });
        self
    }

    /// Adds an F32 tensor.
    pub(crate) fn f32_tensor(&mut self, name: &str, shape: &[usize], values: &[f32]) -> &mut Self {
        assert_eq!(values.len(), shape.iter().product::<usize>(), "{name}");
        let data = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        self.tensor(name, shape, GgmlType::F32, data)
    }

    pub(crate) fn build(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(
            self.tensor_count
                .unwrap_or(self.tensors.len() as u64)
                .to_le_bytes(),
        );
        out.extend(
            self.entry_count
                .unwrap_or(self.entries.len() as u64)
                .to_le_bytes(),
        );
        for (key, value) in &self.entries {
            push_text(&mut out, key);
            push_value(&mut out, value);
        }
        let mut end = 0u64;
        let mut places = Vec::new();
        for tensor in &self.tensors {
            push_text(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor
                .shape
                .iter()
                .rev()
                .for_each(|size| out.extend(size.to_le_bytes()));
            out.extend(tensor.type_id.to_le_bytes());
            let start = end.next_multiple_of(self.alignment);
            out.extend(tensor.offset.unwrap_or(start).to_le_bytes());
            end = start + tensor.data.len() as u64;
            places.push(start);
        }
        let data_start = (out.len() as u64).next_multiple_of(self.alignment);
        for (tensor, start) in self.tensors.iter().zip(places) {
            out.resize((data_start + start) as usize, 0);
            out.extend(&tensor.data);
        }
        out
    }

    pub(crate) fn parse(&self) -> Result<GgufFile, GgufError> {
        GgufFile::parse(FileBytes::from(self.build()))
    }
}

pub(crate) fn texts(values: &[&str]) -> Value {
    Value::Texts(values.iter().map(|value| (*value).to_owned()).collect())
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn push_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U32(value) => {
            out.extend(4u32.to_le_bytes());
            out.extend(value.to_le_bytes());
        }
        Value::I32(value) => {
            out.extend(5u32.to_le_bytes());
            out.extend(value.to_le_bytes());
        }
        Value::F32(value) => {
            out.extend(6u32.to_le_bytes());
            out.extend(value.to_le_bytes());
        }
        Value::Bool(value) => {
            out.extend(7u32.to_le_bytes());
            out.push((*value).into());
        }
        Value::Text(text) => {
            out.extend(8u32.to_le_bytes());
            push_text(out, text);
        }
        Value::Texts(texts) => {
            push_array(out, 8, texts.len());
            texts.iter().for_each(|text| push_text(out, text));
        }
        Value::I32s(values) => {
            push_array(out, 5, values.len());
            values
                .iter()
                .for_each(|value| out.extend(value.to_le_bytes()));
        }
        Value::F32s(values) => {
            push_array(out, 6, values.len());
            values
                .iter()
                .for_each(|value| out.extend(value.to_le_bytes()));
        }
        Value::Raw(id, bytes) => {
            out.extend(id.to_le_bytes());
            out.extend(bytes);
        }
    }
}

fn push_array(out: &mut Vec<u8>, element: u32, len: usize) {
    out.extend(9u32.to_le_bytes());
    out.extend(element.to_le_bytes());
    out.extend((len as u64).to_le_bytes());
}
