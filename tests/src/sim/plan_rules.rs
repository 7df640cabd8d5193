//! What every step plan must satisfy, whatever it computes.

use ebb_scheduler::{Config, Logits, StepPlan};

/// Checks a plan against the scheduler's limits. Rules of a backend belong here, too: no plan that
/// one would refuse may leave the scheduler.
///
/// # Errors
/// A sentence about the rule that is broken.
pub fn check_plan(plan: &StepPlan, config: &Config) -> Result<(), String> {
    let rows: usize = plan.slices.iter().map(|s| s.tokens.len()).sum();
    let logit_rows = plan.slices.iter().map(|s| match s.logits {
        Logits::None => 0,
        Logits::Last { .. } => 1,
        Logits::All { .. } => s.tokens.len(),
    });
    let logit_rows: usize = logit_rows.sum();
    let mut seqs: Vec<_> = plan.slices.iter().map(|s| s.seq).collect();
    seqs.sort_unstable();
    seqs.dedup();
    let is_too_long = |len: usize| len > config.prefill_chunk.max(1);
    for (is_broken, rule) in [
        (rows == 0 && plan.shrinks.is_empty(), "does nothing"),
        (rows != plan.tokens.len(), "has tokens of no slice"),
        (rows > config.max_step_tokens, "has too many tokens"),
        (logit_rows > config.max_logit_rows, "has too many logits"),
        (
            seqs.len() != plan.slices.len(),
            "has two slices of one sequence",
        ),
        (
            plan.slices.iter().any(|s| is_too_long(s.tokens.len())),
            "has a slice that is too long",
        ),
    ] {
        if is_broken {
            return Err(format!(
                "a plan of {rows} tokens, {logit_rows} with logits, {rule}: {plan:?}"
            ));
        }
    }
    Ok(())
}
