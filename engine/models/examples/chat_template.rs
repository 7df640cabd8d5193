//! Renders chat templates, for tests/templates_beside_jinja2.py: a line of JSON in, with
//! `template` and the arguments that it is rendered with, a line out, with `text` or `error`.

use std::io::{BufRead as _, Write as _};
use std::time::{Duration, UNIX_EPOCH};

use ebb_models::tokenizer::{ChatTemplate, Conversation, TemplateTokens};
use serde_json::{Value, json};

/// 2024-07-26 12:30 UTC, which the other side takes for now, too.
const NOW: Duration = Duration::from_secs(1_721_997_000);

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let given: Value = serde_json::from_str(&line?)?;
        let answer = match rendered(&given) {
            Ok(text) => json!({ "text": text }),
            Err(error) => json!({ "error": error }),
        };
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

fn rendered(given: &Value) -> Result<String, String> {
    let source = given["template"].as_str().ok_or("there is no template")?;
    let template = ChatTemplate::new(source, TemplateTokens::default());
    let messages = given["messages"].as_array().map_or(&[][..], Vec::as_slice);
    let conversation = Conversation {
        messages,
        tools: given.get("tools"),
        documents: given.get("documents"),
        add_generation_prompt: given["add_generation_prompt"] == true,
        continue_final_message: false,
        kwargs: given["kwargs"].as_object(),
        now: UNIX_EPOCH + NOW,
    };
    let text = template.and_then(|t| t.render_conversation(&conversation));
    text.map_err(|error| error.to_string())
}
