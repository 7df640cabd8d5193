//! What a stage does, on the terminal while it runs.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::drive::{Live, Stage};
use crate::summary::number;

/// How often the line is drawn anew.
const TICK: Duration = Duration::from_millis(200);

/// Draws a stage's line until dropped; the `index`th of `stages`. Does nothing when standard error
/// is no terminal.
pub async fn watch(live: &Live, stage: &Stage, index: usize, stages: usize) -> Infallible {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    // The template is a constant that parses.
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
        bar.set_style(style);
    }
    let clear = Clear(bar.clone());
    let (begin, mut last) = (Instant::now(), (Instant::now(), 0));
    let mut rate = 0.0;
    loop {
        tokio::time::sleep(TICK).await;
        let seen = live.seen();
        let now = Instant::now();
        let seconds = (now - last.0).as_secs_f64();
        // Smooth enough to read.
        rate += 0.3 * ((seen.tokens - last.1) as f64 / seconds - rate);
        last = (now, seen.tokens);
        clear
            .0
            .set_message(line(stage, (index, stages), begin.elapsed(), rate, &seen));
        clear.0.tick();
    }
}

/// Takes the line away.
struct Clear(ProgressBar);

impl Drop for Clear {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn line(
    stage: &Stage,
    (index, stages): (usize, usize),
    elapsed: Duration,
    rate: f64,
    seen: &crate::drive::Seen,
) -> String {
    let failed = match seen.failed {
        0 => String::new(),
        n => format!(", {n} failed"),
    };
    format!(
        "stage {} of {stages}: {}, {} s: {} done{failed}, {} in flight, {} tokens/s, TTFT p50 {} \
         ms",
        index + 1,
        stage.label,
        elapsed.as_secs(),
        seen.done,
        seen.in_flight,
        number(rate),
        number(seen.ttft_p50_us as f64 / 1e3)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::{Drive, Seen};

    #[test]
    fn a_line_tells_what_goes_on() {
        let stage = Stage {
            label: "4 clients".into(),
            load: 4.0,
            drive: Drive::Open { times: Vec::new() },
        };
        let seen = Seen {
            in_flight: 4,
            done: 31,
            failed: 2,
            tokens: 999,
            ttft_p50_us: 12_345,
        };
        assert_eq!(
            line(&stage, (1, 3), Duration::from_millis(5500), 812.4, &seen),
            "stage 2 of 3: 4 clients, 5 s: 31 done, 2 failed, 4 in flight, 812 tokens/s, TTFT p50 \
             12.3 ms"
        );
    }
}
