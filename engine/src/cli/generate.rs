//! `ebb generate`: one prompt, one answer.

use std::io::{Read as _, Write};
use std::time::Instant;

use clap::Args;
use ebb_proto::v1;
use ebb_proto::v1::generate_response::Event;
use serde::Serialize;

use super::error::CliError;
use super::sampling_args::SamplingArgs;
use super::source::{Answer, SourceArgs};

/// What to ask and how to print the answer.
#[derive(Debug, Clone, Args)]
pub(super) struct GenerateArgs {
    /// Text to continue; - reads it from standard input.
    #[arg(long, short, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: String,
    /// Send the prompt as a chat message, with the model's chat template.
    #[arg(long)]
    chat: bool,
    /// With --chat: what the model is told before the conversation.
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// Lowest bits of any key or value that the answer may be computed from: 16, 8, 4 or 2
    /// [default: no limit].
    #[arg(long, value_name = "BITS")]
    min_kv_bits: Option<u32>,
    /// Print one JSON object when the answer is complete.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) sampling: SamplingArgs,
    #[command(flatten)]
    source: SourceArgs,
}

/// The complete answer, as `--json` prints it.
#[derive(Debug, Default, Serialize)]
struct Report {
    text: String,
    token_ids: Vec<u32>,
    /// `stop` or `length`.
    finish_reason: &'static str,
    prompt_tokens: u32,
    /// Tokens of the prompt that came from the prefix cache.
    cached_tokens: u32,
    completion_tokens: u32,
    /// Lowest nominal bits of any key or value that it was computed from, and the mean of those
    /// read.
    lowest_kv_bits: u32,
    mean_kv_bits: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_string: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_token_id: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    logprobs: Vec<Logprobs>,
    /// From sending the request to the first token.
    time_to_first_token_seconds: f64,
    /// From sending the request to the end.
    seconds: f64,
    /// Of the tokens after the first; none when there is only one.
    tokens_per_second: Option<f64>,
}

/// One token's log-probability and its rivals'.
#[derive(Debug, Serialize)]
struct Logprobs {
    token_id: u32,
    logprob: f32,
    /// (token id, log-probability), best first.
    top: Vec<(u32, f32)>,
}

impl GenerateArgs {
    /// Runs the command.
    pub(super) async fn run(&self) -> Result<(), CliError> {
        let request = self.request()?;
        let mut source = self.source.open().await?;
        let began = Instant::now();
        let answer = source.generate(request).await?;
        let mut out = std::io::stdout();
        let report = follow(answer, began, |text| {
            if self.json {
                Ok(())
            } else {
                print(&mut out, text)
            }
        })
        .await?;
        if self.json {
            let line =
                serde_json::to_string(&report).map_err(|e| CliError::io("write JSON")(e.into()))?;
            return print(&mut out, &format!("{line}\n"));
        }
        if !report.text.ends_with('\n') {
            print(&mut out, "\n")?;
        }
        eprintln!("{}", report.summary());
        Ok(())
    }

    fn request(&self) -> Result<v1::GenerateRequest, CliError> {
        let mut text = self.prompt.clone();
        if text == "-" {
            text.clear();
            std::io::stdin()
                .read_to_string(&mut text)
                .map_err(CliError::io("read the prompt from standard input"))?;
        }
        let message = |role: &str, content: String| v1::ChatMessage {
            role: role.into(),
            content,
        };
        let prompt = if self.chat {
            let system = self.system.clone().map(|s| message("system", s));
            let messages = system.into_iter().chain([message("user", text)]).collect();
            v1::generate_request::Prompt::Chat(v1::ChatMessages { messages })
        } else {
            v1::generate_request::Prompt::Text(text)
        };
        Ok(v1::GenerateRequest {
            prompt: Some(prompt),
            sampling: Some(self.sampling.message()),
            min_kv_bits: self.min_kv_bits,
            ..Default::default()
        })
    }
}

/// Prints at once, not at the end of the line.
pub(super) fn print(out: &mut impl Write, text: &str) -> Result<(), CliError> {
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(CliError::io("write the answer"))
}

/// Takes in an answer to its end, giving its text to `show` as it comes.
async fn follow(
    mut answer: Answer,
    began: Instant,
    mut show: impl FnMut(&str) -> Result<(), CliError>,
) -> Result<Report, CliError> {
    let mut report = Report::default();
    let mut first = None;
    while let Some(event) = answer.next().await? {
        match event {
            Event::Started(started) => {
                report.prompt_tokens = started.prompt_tokens;
                report.cached_tokens = started.cached_tokens;
            }
            Event::PromptLogprobs(_) => {}
            Event::Delta(delta) => {
                first.get_or_insert_with(Instant::now);
                show(&delta.text)?;
                report.add(delta);
            }
            Event::Finished(finished) => {
                report.finish_reason = match finished.reason() {
                    v1::FinishReason::Stop => "stop",
                    v1::FinishReason::Length => "length",
                    v1::FinishReason::Unspecified => "unknown",
                };
                report.completion_tokens = finished.completion_tokens;
                report.lowest_kv_bits = finished.lowest_kv_bits;
                report.mean_kv_bits = finished.mean_kv_bits;
                report.stop_string = finished.stop_string;
                report.stop_token_id = finished.stop_token_id;
            }
        }
    }
    let first = first.unwrap_or_else(Instant::now);
    report.time_to_first_token_seconds = (first - began).as_secs_f64();
    report.seconds = began.elapsed().as_secs_f64();
    if report.completion_tokens > 1 {
        let decode = first.elapsed().as_secs_f64();
        report.tokens_per_second = Some(f64::from(report.completion_tokens - 1) / decode);
    }
    Ok(report)
}

impl Report {
    fn add(&mut self, delta: v1::Delta) {
        self.text.push_str(&delta.text);
        self.token_ids.extend(delta.token_ids);
        self.logprobs
            .extend(delta.logprobs.into_iter().map(|l| Logprobs {
                token_id: l.token_id,
                logprob: l.logprob,
                top: l.top.into_iter().map(|t| (t.token_id, t.logprob)).collect(),
            }));
    }

    /// For people.
    fn summary(&self) -> String {
        let cached = match self.cached_tokens {
            0 => String::new(),
            n => format!(" ({n} cached)"),
        };
        let rate = self
            .tokens_per_second
            .map_or(String::new(), |r| format!(", {r:.1} tokens/s"));
        format!(
            "{} prompt tokens{cached}, first token after {:.2} s; {} tokens in {:.2} s{rate}; \
             ended by {}",
            self.prompt_tokens,
            self.time_to_first_token_seconds,
            self.completion_tokens,
            self.seconds,
            self.finish_reason
        )
    }
}
