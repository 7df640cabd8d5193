//! Checks and timings of the CUDA backend's parts; the commands of `ebb-bench` that need a GPU.

use std::error::Error;
use std::sync::Arc;

use clap::{Subcommand, ValueEnum};
use ebb_kernels::cuda::probe::ColdL2;
use ebb_kernels::cuda::{Capability, Device, selftest};
use ebb_kernels::weight_formats::{Codes, Quantisation, WeightFormat};

pub mod attention;
pub mod experts;
pub mod polar;
pub mod prefill;
pub mod products;
pub mod prompts;
pub mod recurrent;
pub mod sample;
pub mod shrunk_attention;
pub mod step;
pub mod windows;

/// What `check` checks.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Part {
    /// Matrix products
    Products,
    /// Matrix products of packed weights
    Packed,
    /// Layers of experts
    Experts,
    /// Whole models at 16 bit
    Models,
    /// Recurrent layers, and models that have some
    Recurrences,
    /// Page formats, shrinks, and models whose blocks shrink
    Formats,
    /// Decode and prefill attention
    Attention,
    /// Attention with windows, soft caps and sinks
    Scores,
    /// Attention at 16 bit, RoPE and norms of heads of every width
    Heads,
    /// Draws from logits
    Sampling,
}

impl Part {
    fn check(self, device: &Arc<Device>, quick: bool) -> Result<bool, Box<dyn Error>> {
        Ok(match self {
            Self::Products => selftest::products(device, quick)?,
            Self::Packed => selftest::packed_products(device, quick)?,
            Self::Experts => selftest::experts(device, quick)?,
            Self::Models => selftest::models(device)?,
            Self::Recurrences => selftest::recurrences(device, quick)?,
            Self::Formats => selftest::formats(device)?,
            Self::Attention => selftest::attention(device, quick)?,
            Self::Scores => selftest::scores(device, quick)?,
            Self::Heads => selftest::heads(device, quick)?,
            Self::Sampling => selftest::sampling(device)?,
        })
    }
}

/// Commands that need a GPU; they use the first.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Compare kernels and whole models on the GPU with CPU references, on random and hostile
    /// inputs
    Check {
        /// Few and short cases, for use under compute-sanitizer
        #[arg(long)]
        quick: bool,
        /// Check these parts alone [default: all]
        #[arg(long, value_delimiter = ',')]
        only: Vec<Part>,
        /// Use the GPU as if it were of this older compute capability, such as 8.6
        #[arg(long = "as", value_name = "CAPABILITY")]
        older: Option<Capability>,
    },
    /// Time decode attention with a cold L2, graph-replayed, median; prints CSV
    Attention {
        /// Timed runs of each shape
        #[arg(long, default_value_t = 30)]
        repeats: usize,
        /// Fill L2 by reading before each run, as a step does with weights, and not by writing, as
        /// published comparisons do: then there is nothing to write back
        #[arg(long)]
        clean_l2: bool,
        /// Time every compiled kernel with this in its name, too
        #[arg(long, default_value = "")]
        kernels: String,
        /// Ways of cutting sequences to try with them: smallest and largest large unit, large
        /// units, small unit, as 8-32-32-4
        #[arg(long, value_delimiter = ',', value_parser = rule)]
        rules: Vec<[usize; 4]>,
        /// Only these shapes, as 64x4096 or, with query and KV heads, 64x4096/32/1; all of them if
        /// none is named
        #[arg(long, value_delimiter = ',')]
        shapes: Vec<String>,
        /// Channels a head; of other than 128 no rows over shrunk blocks
        #[arg(long, default_value_t = attention::HEAD_DIM)]
        head_dim: usize,
        /// Only these rows over shrunk blocks and none over 16-bit ones, as `int4/int4,int2/int2
        /// q_len 4,of all`
        #[arg(long, value_delimiter = ',', conflicts_with_all = ["kernels", "rules"])]
        shrunk: Vec<String>,
    },
    /// Time decode attention of layers with a window, and of the same that see all tokens, in
    /// shapes of gpt-oss (with sinks) and Gemma 3 12B, cold L2, graph-replayed, median; prints CSV
    Windows {
        /// Timed runs of each
        #[arg(long, default_value_t = 30)]
        repeats: usize,
        /// Fill L2 by reading before each run, not by writing
        #[arg(long)]
        clean_l2: bool,
        /// Decode batches
        #[arg(long, value_delimiter = ',', default_value = "1,64,256")]
        batches: Vec<usize>,
        /// Tokens in each sequence's cache
        #[arg(long, value_delimiter = ',', default_value = "4096,32768")]
        contexts: Vec<usize>,
        /// Tokens that a row sees, in place of each shape's own window
        #[arg(long)]
        window: Option<usize>,
        /// Cap scores
        #[arg(long)]
        soft_cap: Option<f32>,
    },
    /// Time chunked-prefill attention, with and without wgmma; prints CSV
    Prefill {
        /// Timed runs of each shape
        #[arg(long, default_value_t = 10)]
        repeats: usize,
        /// Channels a head, of every shape, in place of each shape's own
        #[arg(long)]
        head_dim: Option<usize>,
    },
    /// Compare ways to multiply queries with polar keys, by tables and on tensor cores, and time
    /// them beside 16-bit keys; prints CSV
    Polar {
        /// Blocks of 128 tokens of one KV head of 128 channels
        #[arg(long, default_value_t = 32768, value_parser = clap::value_parser!(u32).range(1..))]
        blocks: u32,
        /// Timed runs of each way
        #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
        repeats: u32,
    },
    /// Time steps of a prompt's chunk over a context that has shrunk, and over one at 16 bit;
    /// prints CSV
    Prompts,
    /// Time the matrix products of a model of Llama-3.1-8B's shape; prints CSV
    Products {
        /// Rows
        #[arg(long, value_delimiter = ',', default_value = "1,8,16,64,256")]
        rows: Vec<usize>,
        /// Timed runs of each
        #[arg(long, default_value_t = 20)]
        repeats: usize,
        /// Time layers only, their products one after the other, not each product alone
        #[arg(long)]
        in_sequence: bool,
        /// Time products of packed weights alone
        #[arg(long, conflicts_with = "in_sequence")]
        packed: bool,
    },
    /// Time a layer's products of experts, by the kernel for each number of rows an expert, in
    /// shapes of Qwen3-30B-A3B and gpt-oss-20b, cold L2, graph-replayed, median; prints CSV
    Experts {
        /// Rows, each of which goes to 8 experts of 128, or 4 of 32
        #[arg(
            long,
            value_delimiter = ',',
            default_value = "1,4,16,64,96,128,192,256,512,1024"
        )]
        rows: Vec<usize>,
        /// Timed runs of each
        #[arg(long, default_value_t = 20)]
        repeats: usize,
    },
    /// Time a recurrent layer of Qwen3.6-27B's shape over prompts, in chunks and row by row, cold
    /// L2, graph-replayed, median; prints CSV
    Recurrent {
        /// Tokens of each sequence's prompt
        #[arg(long, value_delimiter = ',', default_value = "1024,8192")]
        tokens: Vec<usize>,
        /// Sequences of a step
        #[arg(long, value_delimiter = ',', default_value = "1")]
        seqs: Vec<usize>,
        /// Timed runs of each
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
        repeats: u32,
    },
    /// Time draws from logits on the device; prints CSV
    Sample {
        /// Sizes of the vocabulary
        #[arg(long, value_delimiter = ',', default_value = "128256,151936")]
        vocabs: Vec<usize>,
        /// Rows of logits, a draw from each
        #[arg(long, value_delimiter = ',', default_value = "1,16,64,256")]
        batches: Vec<usize>,
        /// Timed runs of each
        #[arg(long, default_value_t = 50)]
        repeats: usize,
    },
    /// Time whole steps of a model of Llama-3.1-8B's shape with random weights; prints CSV
    Step {
        /// A model's directory, of which config.json is enough; Llama-3.1-8B's shape without it
        #[arg(long, value_name = "DIR")]
        model: Option<String>,
        /// Decode batches
        #[arg(long, value_delimiter = ',', default_value = "1,64,256")]
        batches: Vec<usize>,
        /// Tokens in each sequence's cache
        #[arg(long, default_value_t = 1152)]
        context: usize,
        /// Take cuBLASLt's first suggestion for every product instead of timing its candidates
        #[arg(long)]
        no_tune: bool,
        /// In batch-invariant mode
        #[arg(long)]
        batch_invariant: bool,
        /// Quantise the linear layers but the output projection, or experts alone
        #[arg(long)]
        quantization: Option<Weights>,
    },
}

/// What linear layers, or experts alone, are quantised to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Weights {
    /// 8-bit floats, a scale for each output
    Fp8,
    /// 8-bit floats, a scale for each 128 inputs
    Fp8Blocks,
    /// 4-bit integers, a scale and an offset for each 128 inputs
    Int4,
    /// 4-bit integers, a scale and an offset for each 32 inputs, as in GGUF files
    Q4,
    /// 4-bit floats, a scale for each 32 inputs
    Mxfp4,
    /// The same of experts alone, as gpt-oss has it
    Mxfp4Experts,
    /// 8-bit integers, a scale for each output
    Int8,
}

impl From<Weights> for Quantisation {
    fn from(weights: Weights) -> Self {
        let nearest = |codes, group, has_offsets| {
            Self::Nearest(WeightFormat {
                codes,
                group,
                has_offsets,
            })
        };
        match weights {
            Weights::Fp8 => Self::Fp8,
            Weights::Fp8Blocks => nearest(Codes::E4M3, 128, false),
            Weights::Int4 => Self::Int4,
            Weights::Q4 => nearest(Codes::Int { bits: 4, zero: 0 }, 32, true),
            Weights::Mxfp4 => nearest(Codes::E2M1, 32, false),
            Weights::Mxfp4Experts => Self::Mxfp4,
            Weights::Int8 => nearest(Codes::Int { bits: 8, zero: 128 }, usize::MAX, false),
        }
    }
}

fn rule(text: &str) -> Result<[usize; 4], String> {
    numbers(text, "four numbers, as 8-32-32-4")
}

fn numbers<const N: usize>(text: &str, what: &str) -> Result<[usize; N], String> {
    let numbers: Result<Vec<usize>, _> = text.split('-').map(str::parse).collect();
    let numbers = numbers.ok().and_then(|n| n.try_into().ok());
    numbers.ok_or_else(|| format!("{text} is not {what}"))
}

/// Runs a command.
///
/// # Errors
/// When the device cannot be used, or a check fails.
pub fn run(command: &Command) -> Result<(), Box<dyn Error>> {
    let older = match command {
        Command::Check { older, .. } => *older,
        _ => None,
    };
    let device = Device::open_as(0, older)?;
    eprintln!(
        "{}, {} multiprocessors",
        device.name(),
        device.multiprocessors()
    );
    match command {
        Command::Check { quick, only, .. } => {
            let parts = match only.as_slice() {
                [] => Part::value_variants(),
                only => only,
            };
            let mut passed = true;
            for part in parts {
                passed &= part.check(&device, *quick)?;
            }
            if !passed {
                return Err("a check failed; see the table above".into());
            }
        }
        Command::Attention {
            repeats,
            clean_l2,
            kernels,
            rules,
            shapes,
            head_dim,
            shrunk,
        } => {
            let cold = match clean_l2 {
                true => ColdL2::Read,
                false => ColdL2::Written,
            };
            let shapes = attention::shapes(shapes)?;
            shrunk_attention::check_rows(shrunk)?;
            if shrunk.is_empty() {
                let shapes = (shapes.as_slice(), *head_dim);
                attention::run(&device, shapes, *repeats, cold, kernels, rules)?;
            } else {
                attention::print_header();
            }
            if *head_dim == attention::HEAD_DIM {
                shrunk_attention::run(&device, &shapes, shrunk, *repeats, cold)?;
            }
        }
        Command::Windows {
            repeats,
            clean_l2,
            batches,
            contexts,
            window,
            soft_cap,
        } => {
            let cold = match clean_l2 {
                true => ColdL2::Read,
                false => ColdL2::Written,
            };
            let sizes = windows::Sizes {
                batches: batches.clone(),
                contexts: contexts.clone(),
                window: *window,
                soft_cap: *soft_cap,
            };
            windows::run(&device, &sizes, *repeats, cold)?;
        }
        Command::Prefill { repeats, head_dim } => prefill::run(&device, *repeats, *head_dim)?,
        Command::Polar { blocks, repeats } => {
            polar::run(&device, *blocks as usize, *repeats as usize)?;
        }
        Command::Prompts => prompts::run(&device)?,
        Command::Products {
            rows,
            repeats,
            in_sequence,
            packed,
        } => {
            if *packed {
                return Ok(products::packed(&device, rows, *repeats)?);
            }
            if !in_sequence {
                products::alone(&device, rows, *repeats)?;
            }
            products::in_sequence(&device, rows, *repeats)?;
        }
        Command::Experts { rows, repeats } => experts::run(&device, rows, *repeats)?,
        Command::Recurrent {
            tokens,
            seqs,
            repeats,
        } => recurrent::run(&device, tokens, seqs, *repeats as usize)?,
        Command::Sample {
            vocabs,
            batches,
            repeats,
        } => sample::run(&device, vocabs, batches, *repeats)?,
        Command::Step {
            model,
            batches,
            context,
            no_tune,
            batch_invariant,
            quantization,
        } => {
            let modes = (!no_tune, *batch_invariant);
            let quantisation = quantization.map(Quantisation::from);
            let spec = step::shape(model.as_deref())?;
            step::run(&device, spec, batches, *context, modes, quantisation)?;
        }
    }
    Ok(())
}
