//! A request trace against the scheduler and block manager, with a cost model in place of a GPU:
//! how many requests a second a KV budget serves within a latency target, in which mode.
//!
//! Every decision is the real scheduler's; only the time that steps take is modelled
//! ([`hardware`]), and the tokens are made up. The clock is virtual: requests arrive at their
//! times, a step takes the modelled time, and where nothing runs the clock jumps to the next
//! arrival. Equal inputs give equal figures, but for those of the host.
//!
//! A request generates as many tokens as the trace says. Its `max_tokens` is that number, so
//! admission knows the true length; a `--max-tokens-factor` above 1 hides it. No two prompts begin
//! alike, so a request finds nothing of another's in the prefix cache; what that keeps has to make
//! way.

pub mod args;
pub mod floor;
pub mod hardware;
pub mod outcome;
pub mod plot;
pub mod replay;
pub mod report;
pub mod search;
pub mod setup;
pub mod shape;
pub mod size;

use std::error::Error;
use std::path::Path;

pub use args::Args;
pub use ebb_load::trace;
use ebb_scheduler::Mode;

use floor::AtFloor;
use outcome::Outcome;
use trace::Trace;

/// The most bits that a stored token may take at the floor.
const FLOOR_BITS_MAX: f64 = 4.5;

/// Replays the trace as asked for and writes the figures.
///
/// # Errors
/// A sentence telling which flag to change.
pub fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let trace = args.trace()?;
    let mut outcomes = Vec::new();
    if args.at_floor {
        outcomes = at_floor(args, &trace)?;
    } else {
        for &kv in &args.kv_memory {
            for &mode in &args.mode {
                let setup = args.setup(mode, kv)?;
                let mut tell = |outcome: Outcome| {
                    eprint!("{}", report::table(std::slice::from_ref(&outcome)));
                    outcomes.push(outcome);
                };
                if args.search {
                    tell(search::highest_rate(&setup, &trace, args.attain)?);
                } else if args.rate.is_empty() {
                    tell(replay::replay(&setup, &trace, None)?);
                }
                for &rate in &args.rate {
                    tell(replay::replay(
                        &setup,
                        &trace.clone().with_rate(rate),
                        None,
                    )?);
                }
            }
        }
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&outcomes)?);
    } else {
        print!("{}", report::table(&outcomes));
    }
    if let Some(path) = &args.csv {
        write(path, &report::csv(&outcomes)?)?;
    }
    if let Some(path) = &args.plot {
        let title = args.title();
        write(path, &plot::svg(&outcomes, &title, args.rate.len() > 1))?;
    }
    Ok(())
}

/// The bits at the floor: counted from the trace, and as mode static comes to.
fn at_floor(args: &Args, trace: &Trace) -> Result<Vec<Outcome>, Box<dyn Error>> {
    let mut outcomes = Vec::new();
    for &kv in &args.kv_memory {
        let setup = args.setup(Mode::Static, kv)?;
        if outcomes.is_empty() {
            let counted = AtFloor::of(trace, &setup.pool()?);
            eprint!("{}", counted.text(FLOOR_BITS_MAX));
            eprintln!(
                "As mode static stores the trace (bits stored: codes and metadata held x 16 over \
                 the bytes of the same tokens at 16 bit, over blocks and time; bits read: the \
                 same over the bytes that steps read):"
            );
        }
        let rated = args.rate.first();
        let trace = rated.map_or(trace.clone(), |rate| trace.clone().with_rate(*rate));
        outcomes.push(replay::replay(&setup, &trace, None)?);
    }
    Ok(outcomes)
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    let wrong = |e: std::io::Error| format!("cannot write {}: {e}", path.display());
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(wrong)?;
    }
    std::fs::write(path, text).map_err(wrong)
}
