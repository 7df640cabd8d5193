//! `ebb chat`: a conversation in the terminal.

use std::io::{BufRead as _, IsTerminal as _};
use std::time::Instant;

use clap::Args;
use ebb_proto::v1;
use ebb_proto::v1::generate_response::Event;
use tokio::sync::mpsc;

use super::error::CliError;
use super::generate::print;
use super::sampling_args::SamplingArgs;
use super::source::{Source, SourceArgs};

const HELP: &str = "\
/help   shows this
/reset  forgets the conversation
/exit   leaves, as does Ctrl-D
Ctrl-C  stops an answer";

/// How to converse.
#[derive(Debug, Clone, Args)]
pub(super) struct ChatArgs {
    /// What the model is told before the conversation.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    source: SourceArgs,
}

/// What a line that was typed asks for.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Nothing,
    Help,
    Reset,
    Exit,
    Unknown(&'a str),
    Say(&'a str),
}

impl<'a> Line<'a> {
    fn read(line: &'a str) -> Self {
        match line.trim() {
            "" => Self::Nothing,
            "/help" | "/?" => Self::Help,
            "/reset" => Self::Reset,
            "/exit" | "/quit" => Self::Exit,
            // A slash with a space after its word is more likely a path or a formula than a
            // command.
            word if word.starts_with('/') && !word.contains(char::is_whitespace) => {
                Self::Unknown(word)
            }
            text => Self::Say(text),
        }
    }
}

/// What has been said.
struct Conversation {
    system: Option<String>,
    messages: Vec<v1::ChatMessage>,
}

impl Conversation {
    fn new(system: Option<String>) -> Self {
        let mut conversation = Self {
            system,
            messages: Vec::new(),
        };
        conversation.reset();
        conversation
    }

    fn reset(&mut self) {
        self.messages.clear();
        if let Some(system) = self.system.clone() {
            self.say("system", system);
        }
    }

    fn say(&mut self, role: &str, content: String) {
        self.messages.push(v1::ChatMessage {
            role: role.into(),
            content,
        });
    }

    fn request(&self, sampling: v1::SamplingParams) -> v1::GenerateRequest {
        let chat = v1::ChatMessages {
            messages: self.messages.clone(),
        };
        v1::GenerateRequest {
            prompt: Some(v1::generate_request::Prompt::Chat(chat)),
            sampling: Some(sampling),
            ..Default::default()
        }
    }
}

impl ChatArgs {
    /// Runs the command until /exit or the end of input.
    pub(super) async fn run(&self) -> Result<(), CliError> {
        let mut source = self.source.open().await?;
        let mut out = std::io::stdout();
        let terminal = std::io::stdin().is_terminal();
        if terminal {
            eprintln!(
                "{} is listening; /help tells the commands.",
                source.model_name().await?
            );
        }
        let mut lines = read_lines();
        let mut conversation = Conversation::new(self.system.clone());
        loop {
            if terminal {
                print(&mut out, "> ")?;
            }
            let line = tokio::select! {
                line = lines.recv() => line,
                _ = tokio::signal::ctrl_c() => {
                    eprintln!("\n/exit or Ctrl-D leaves.");
                    continue;
                }
            };
            let Some(line) = line else { break };
            match Line::read(&line) {
                Line::Nothing => {}
                Line::Help => eprintln!("{HELP}"),
                Line::Reset => {
                    conversation.reset();
                    eprintln!("The conversation is forgotten.");
                }
                Line::Exit => break,
                Line::Unknown(word) => {
                    eprintln!("There is no command {word}; /help tells which there are.")
                }
                Line::Say(text) => {
                    conversation.say("user", text.to_owned());
                    self.answer(&mut source, &mut conversation, &mut out)
                        .await?;
                }
            }
        }
        if terminal {
            print(&mut out, "\n")?;
        }
        Ok(())
    }

    /// Streams one answer and keeps it; without one the question is forgotten, so that it can be
    /// asked again.
    async fn answer(
        &self,
        source: &mut Source,
        conversation: &mut Conversation,
        out: &mut std::io::Stdout,
    ) -> Result<(), CliError> {
        let began = Instant::now();
        let mut said = String::new();
        let mut tokens = 0;
        let result = async {
            let mut answer = source
                .generate(conversation.request(self.sampling.message()))
                .await?;
            while let Some(event) = answer.next().await? {
                match event {
                    Event::Delta(delta) => {
                        said.push_str(&delta.text);
                        print(out, &delta.text)?;
                    }
                    Event::Finished(finished) => tokens = finished.completion_tokens,
                    Event::Started(_) | Event::PromptLogprobs(_) => {}
                }
            }
            Ok(())
        };
        let result = tokio::select! {
            result = result => result.map(|()| true),
            _ = tokio::signal::ctrl_c() => Ok(false),
        };
        if !said.ends_with('\n') {
            print(out, "\n")?;
        }
        match result {
            Ok(complete) => {
                if complete {
                    let rate = f64::from(tokens) / began.elapsed().as_secs_f64();
                    eprintln!("[{tokens} tokens, {rate:.1} tokens/s]");
                } else {
                    eprintln!("[stopped]");
                }
                if said.is_empty() {
                    conversation.messages.pop();
                } else {
                    conversation.say("assistant", said);
                }
            }
            Err(error @ CliError::Io { .. }) => return Err(error),
            Err(error) => {
                conversation.messages.pop();
                eprintln!("{error} (/reset starts a new conversation)");
            }
        }
        Ok(())
    }
}

/// Lines of standard input, read by a thread of their own so that waiting for one never holds up
/// anything else.
fn read_lines() -> mpsc::Receiver<String> {
    let (tx, rx) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            // Bytes that are no UTF-8 end the input, like an error of the terminal.
            let Ok(line) = line else { break };
            if tx.blocking_send(line).is_err() {
                break;
            }
        }
    });
    rx
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_from_what_is_said() {
        for (text, line) in [
            ("  ", Line::Nothing),
            ("/help", Line::Help),
            (" /reset\n", Line::Reset),
            ("/exit", Line::Exit),
            ("/quit", Line::Exit),
            ("/exti", Line::Unknown("/exti")),
            ("/usr/bin is what?", Line::Say("/usr/bin is what?")),
            ("hello /help", Line::Say("hello /help")),
        ] {
            assert_eq!(Line::read(text), line, "{text:?}");
        }
    }

    #[test]
    fn reset_keeps_the_system_message_alone() {
        let mut conversation = Conversation::new(Some("be brief".into()));
        conversation.say("user", "hi".into());
        conversation.reset();
        assert_eq!(conversation.messages.len(), 1);
        assert_eq!(conversation.messages[0].role, "system");
    }
}
