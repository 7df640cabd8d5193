//! What every step plan must satisfy, whatever it computes.

use ebb_block_manager::{PoolConfig, TableDelta as Delta};
use ebb_kernels::backend::{
    BlockLevels, BlockTables, FrameCopy, StepInput, StepInputError, StepLimits, TableDelta,
    TableShape,
};
use ebb_scheduler::{Config, Logits, StepPlan};

use super::device::is_windowed;
use super::model::VOCAB;

/// Checks plans against the scheduler's limits, and with the code by which every backend checks
/// its steps: no plan that one would refuse may leave the scheduler.
#[derive(Debug)]
pub struct PlanRules {
    config: Config,
    levels: Levels,
    tables: BlockTables,
    pool_frames: u32,
    input: StepInput,
}

impl PlanRules {
    /// The rules for a scheduler's plans.
    pub fn new(config: &Config, pool: &PoolConfig) -> Self {
        let levels = Levels { pool: pool.clone() };
        let (rows, blocks) = (config.max_running, pool.max_blocks_per_seq as usize);
        let shape = TableShape::new(rows, blocks, &levels, pool.frames);
        Self {
            config: config.clone(),
            tables: BlockTables::new(shape, pool.frames),
            levels,
            pool_frames: pool.frames,
            input: StepInput::default(),
        }
    }

    /// Checks the next plan. All plans must come by here, in order.
    ///
    /// # Errors
    /// A sentence about the rule that is broken.
    pub fn check(&mut self, plan: &StepPlan) -> Result<(), String> {
        check_limits(plan, &self.config)?;
        self.fill(plan);
        let limits = StepLimits {
            vocab: VOCAB as usize,
            layout: &self.levels,
            pool_frames: self.pool_frames,
            samples_before: None,
        };
        let applied = self.tables.apply(&self.levels, &self.input.deltas, |_| ());
        applied
            .and_then(|()| limits.check(&self.input, &mut self.tables))
            .map_err(|e| format!("a backend refuses the plan, {e}: {plan:?}"))
    }

    /// The plan as a backend gets it, without samples; tokens that are still to be sampled are 0.
    fn fill(&mut self, plan: &StepPlan) {
        let input = &mut self.input;
        input.clear();
        input.deltas.extend(plan.deltas.iter().map(table_delta));
        let copies = plan.copies.iter();
        let copies = copies.map(|&(src, dst)| FrameCopy { src, dst });
        input.copies.extend(copies);
        for job in &plan.shrinks {
            input.push_shrink((job.from, &job.old), (job.to, &job.new));
        }
        for slice in &plan.slices {
            let tokens = slice.tokens.start as usize..slice.tokens.end as usize;
            let tokens = plan.tokens[tokens].iter();
            let known: Vec<u32> = tokens.map(|t| if *t < VOCAB { *t } else { 0 }).collect();
            input.push_seq(slice.slot.0, slice.position, &known);
        }
    }
}

/// The pool's levels as backends see them.
#[derive(Debug)]
struct Levels {
    pool: PoolConfig,
}

impl BlockLevels for Levels {
    fn count(&self) -> usize {
        self.pool.levels.len()
    }

    fn frames(&self, level: u16) -> u32 {
        self.pool.level_frames(level)
    }

    fn frames_per_sub_block(&self) -> usize {
        self.pool.frames_per_sub_block as usize
    }

    fn is_windowed(&self, level: u16, index: usize) -> bool {
        is_windowed(&self.pool, level, index)
    }

    /// Which formats a page may take is not the scheduler's business: levels are shrink orders.
    fn check_shrink(&self, _: usize, _: u16, _: u16) -> Result<(), StepInputError> {
        Ok(())
    }
}

fn table_delta(delta: &Delta) -> TableDelta {
    match *delta {
        Delta::Row { slot, index, block } => TableDelta::Row {
            slot: slot.0,
            index,
            block: block.0,
        },
        Delta::Block { block, level } => TableDelta::Block {
            block: block.0,
            level,
        },
        Delta::Frame {
            block,
            index,
            frame,
        } => TableDelta::Frame {
            block: block.0,
            index,
            frame,
        },
    }
}

/// The scheduler's own limits.
fn check_limits(plan: &StepPlan, config: &Config) -> Result<(), String> {
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
