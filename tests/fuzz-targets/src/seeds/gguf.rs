//! GGUF files.

type Inputs = Vec<(String, Vec<u8>)>;

/// A metadata value.
#[derive(Clone)]
enum Value {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
}

impl Value {
    fn write(&self, out: &mut Vec<u8>) {
        let array = |out: &mut Vec<u8>, element: u32, len: usize| {
            out.extend(9u32.to_le_bytes());
            out.extend(element.to_le_bytes());
            out.extend((len as u64).to_le_bytes());
        };
        match self {
            Self::U32(value) => {
                out.extend(4u32.to_le_bytes());
                out.extend(value.to_le_bytes());
            }
            Self::F32(value) => {
                out.extend(6u32.to_le_bytes());
                out.extend(value.to_le_bytes());
            }
            Self::Bool(value) => {
                out.extend(7u32.to_le_bytes());
                out.push((*value).into());
            }
            Self::Text(value) => {
                out.extend(8u32.to_le_bytes());
                text(out, value);
            }
            Self::Texts(values) => {
                array(out, 8, values.len());
                values.iter().for_each(|value| text(out, value));
            }
            Self::I32s(values) => {
                array(out, 5, values.len());
                out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
            Self::F32s(values) => {
                array(out, 6, values.len());
                out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
        }
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

#[derive(Clone)]
struct Tensor {
    name: String,
    /// The fastest dimension first, as in the file.
    shape: Vec<u64>,
    kind: u32,
    bytes: usize,
    /// Instead of its true place.
    offset: Option<u64>,
}

#[derive(Clone)]
struct Gguf {
    entries: Vec<(String, Value)>,
    tensors: Vec<Tensor>,
    /// Instead of the true counts.
    counts: Option<(u64, u64)>,
}

impl Gguf {
    fn set(&mut self, key: &str, value: Value) {
        self.entries.retain(|(name, _)| name != key);
        self.entries.push((key.to_owned(), value));
    }

    fn build(&self) -> Vec<u8> {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        let true_counts = (self.tensors.len() as u64, self.entries.len() as u64);
        let (tensors, entries) = self.counts.unwrap_or(true_counts);
        out.extend(tensors.to_le_bytes());
        out.extend(entries.to_le_bytes());
        for (key, value) in &self.entries {
            text(&mut out, key);
            value.write(&mut out);
        }
        let mut end = 0u64;
        for tensor in &self.tensors {
            text(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            out.extend(tensor.shape.iter().flat_map(|size| size.to_le_bytes()));
            out.extend(tensor.kind.to_le_bytes());
            let place = end.next_multiple_of(32);
            out.extend(tensor.offset.unwrap_or(place).to_le_bytes());
            end = place + tensor.bytes as u64;
        }
        let start = out.len().next_multiple_of(32);
        // 0x3c is a small number in every type.
        out.resize(start, 0);
        out.resize(start + end as usize, 0x3c);
        out
    }
}

/// Type ids, elements and bytes of a block.
const TYPES: [(&str, u32, u64, u64); 10] = [
    ("f32", 0, 1, 4),
    ("f16", 1, 1, 2),
    ("bf16", 30, 1, 2),
    ("q4_0", 2, 32, 18),
    ("q4_1", 3, 32, 20),
    ("q5_0", 6, 32, 22),
    ("q5_1", 7, 32, 24),
    ("q8_0", 8, 32, 34),
    ("q4_k", 12, 256, 144),
    ("q6_k", 14, 256, 210),
];

/// A tiny model whose matrices have a type.
fn model(architecture: &str, kind: usize) -> Gguf {
    let (_, id, block, block_bytes) = TYPES[kind];
    // Rows are whole blocks; heads have 16 channels.
    let hidden = block.max(16);
    let heads = hidden / 16;
    let mut gguf = Gguf {
        entries: Vec::new(),
        tensors: Vec::new(),
        counts: None,
    };
    let key = |name: &str| format!("{architecture}.{name}");
    gguf.set("general.architecture", Value::Text(architecture.to_owned()));
    for (name, value) in [
        ("block_count", 1),
        ("context_length", 256),
        ("embedding_length", hidden as u32),
        ("feed_forward_length", hidden as u32),
        ("attention.head_count", heads as u32),
        ("attention.head_count_kv", heads as u32),
        ("attention.key_length", 16),
        ("attention.value_length", 16),
        ("rope.dimension_count", 16),
    ] {
        gguf.set(&key(name), Value::U32(value));
    }
    gguf.set(&key("attention.layer_norm_rms_epsilon"), Value::F32(1e-5));
    gguf.set(&key("rope.freq_base"), Value::F32(10_000.0));
    tokenizer(&mut gguf, "gpt2");
    let mut tensor = |name: &str, shape: &[u64], is_matrix: bool| {
        let elements: u64 = shape.iter().product();
        let bytes = match is_matrix {
            true => elements / block * block_bytes,
            false => elements * 4,
        };
        gguf.tensors.push(Tensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            kind: if is_matrix { id } else { 0 },
            bytes: bytes as usize,
            offset: None,
        });
    };
    tensor("token_embd.weight", &[hidden, 8], true);
    tensor("output_norm.weight", &[hidden], false);
    let matrices = [
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
    ];
    for name in matrices {
        tensor(&format!("blk.0.{name}.weight"), &[hidden, hidden], true);
    }
    tensor("blk.0.attn_norm.weight", &[hidden], false);
    tensor("blk.0.ffn_norm.weight", &[hidden], false);
    match architecture {
        "qwen2" => ["attn_q", "attn_k", "attn_v"]
            .map(|name| format!("blk.0.{name}.bias"))
            .iter()
            .for_each(|name| tensor(name, &[hidden], false)),
        "qwen3" => ["attn_q_norm", "attn_k_norm"]
            .map(|name| format!("blk.0.{name}.weight"))
            .iter()
            .for_each(|name| tensor(name, &[16], false)),
        _ => {}
    }
    gguf
}

fn tokenizer(gguf: &mut Gguf, model: &str) {
    let words: &[&str] = match model {
        "gpt2" => &["a", "b", "ab", "Ġ", "</s>", "<s>"],
        _ => &["<unk>", "▁a", "a", "<0x0A>", "</s>", "<s>"],
    };
    let words = words.iter().map(|&word| word.to_owned()).collect();
    gguf.set("tokenizer.ggml.model", Value::Text(model.to_owned()));
    gguf.set("tokenizer.ggml.pre", Value::Text("default".to_owned()));
    gguf.set("tokenizer.ggml.tokens", Value::Texts(words));
    let types = if model == "gpt2" {
        [1, 1, 1, 1, 3, 3]
    } else {
        [2, 1, 1, 6, 3, 3]
    };
    gguf.set("tokenizer.ggml.token_type", Value::I32s(types.into()));
    if model == "gpt2" {
        gguf.set(
            "tokenizer.ggml.merges",
            Value::Texts(vec!["a b".to_owned()]),
        );
    } else {
        gguf.set(
            "tokenizer.ggml.scores",
            Value::F32s(vec![0.0, -1.0, -2.0, 0.0, 0.0, 0.0]),
        );
        gguf.set("tokenizer.ggml.unknown_token_id", Value::U32(0));
    }
    gguf.set("tokenizer.ggml.eos_token_id", Value::U32(4));
    gguf.set("tokenizer.ggml.bos_token_id", Value::U32(5));
    gguf.set("tokenizer.ggml.add_bos_token", Value::Bool(true));
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}";
    gguf.set("tokenizer.chat_template", Value::Text(template.to_owned()));
}

pub(super) fn files() -> Inputs {
    let mut inputs = Inputs::new();
    // Matrices of 256 × 256 would take most of the corpus, so that types with such blocks have a
    // file that is refused for its shape alone.
    for (kind, (name, _, block, _)) in TYPES.iter().enumerate() {
        let mut gguf = model(["llama", "qwen2", "qwen3"][kind % 3], kind);
        if *block > 32 {
            gguf.tensors.truncate(2);
        }
        inputs.push(((*name).to_owned(), gguf.build()));
    }
    let mut add = |name: &str, change: &dyn Fn(&mut Gguf)| {
        let mut gguf = model("llama", 7);
        change(&mut gguf);
        // What follows a lie is hardly read.
        let mut bytes = gguf.build();
        bytes.truncate(4096);
        inputs.push((name.to_owned(), bytes));
    };
    add("sentencepiece", &|gguf| tokenizer(gguf, "llama"));
    add("tebi-tensors", &|gguf| gguf.counts = Some((1 << 40, 1)));
    add("tebi-entries", &|gguf| gguf.counts = Some((0, 1 << 40)));
    add("many-tensors", &|gguf| gguf.counts = Some((60_000, 1)));
    add("overflow", &|gguf| {
        gguf.tensors[0].shape = vec![1 << 40, 1 << 40]
    });
    add("huge", &|gguf| gguf.tensors[0].shape = vec![1 << 63]);
    add("empty-tensor", &|gguf| gguf.tensors[0].shape = vec![0, 8]);
    add("far", &|gguf| gguf.tensors[0].offset = Some(u64::MAX - 31));
    add("shared", &|gguf| gguf.tensors[3].offset = Some(0));
    add("twice", &|gguf| {
        gguf.tensors[3].name = gguf.tensors[2].name.clone()
    });
    add("alignment", &|gguf| {
        gguf.set("general.alignment", Value::U32(1 << 31))
    });
    add("layers", &|gguf| {
        gguf.set("llama.block_count", Value::U32(u32::MAX))
    });
    add("heads", &|gguf| {
        gguf.set("llama.attention.head_count", Value::U32(u32::MAX))
    });
    add("context", &|gguf| {
        gguf.set("llama.context_length", Value::U32(u32::MAX))
    });
    add("rope", &|gguf| {
        gguf.set("llama.rope.scaling.type", Value::Text("yarn".into()))
    });
    add("theta", &|gguf| {
        gguf.set("llama.rope.freq_base", Value::F32(f32::NAN))
    });
    add("merges", &|gguf| {
        gguf.set(
            "tokenizer.ggml.merges",
            Value::Texts(vec!["x y".into(), " ".into()]),
        );
    });
    inputs.push(("empty".to_owned(), Vec::new()));
    inputs.push(("magic".to_owned(), b"GGUF".to_vec()));
    // An array that says it has 2^24 texts.
    let mut array = b"GGUF\x03\0\0\0".to_vec();
    array.extend([0u64, 1, 1].iter().flat_map(|n| n.to_le_bytes()));
    array.push(b'a');
    array.extend([9u32, 8].iter().flat_map(|n| n.to_le_bytes()));
    array.extend((1u64 << 24).to_le_bytes());
    array.resize(array.len() + 200, 0);
    inputs.push(("endless-array".to_owned(), array));
    inputs
}
