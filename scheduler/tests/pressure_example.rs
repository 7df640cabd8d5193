//! The worked example of `ebb_block_manager::pressure`, run: its docs show what this prints.

mod common;

use std::collections::BTreeMap;

use common::{Harness, config, request};
use ebb_block_manager::precision::{
    BlockSize, LevelChange, LevelTable, Page, PageLevel, PageSide, ShrinkOrder,
};
use ebb_block_manager::{BlockId, PoolConfig};
use ebb_scheduler::{Admission, Config, Mode, Notice, StepPlan};

/// The docs of the pressure policy.
const DOCS: &str = include_str!("../../block-manager/src/pressure.md");

/// 56 frames, 4 of them the reserve for shrinks. A block takes 8, 4, 2 or 1 frame at 16, 8, 4 or
/// 2 bit.
fn pool() -> PoolConfig {
    let page = Page {
        layer: 0,
        side: PageSide::K,
    };
    let steps = [8, 4, 2].map(|bits| LevelChange {
        page,
        to: PageLevel { tag: bits, bits },
    });
    let order = ShrinkOrder::new(1, steps.to_vec()).expect("bits fall");
    let levels = LevelTable::new(&order, |taken| {
        let frames = 8 >> taken.len();
        BlockSize {
            frames,
            bytes: u64::from(frames) * 1000,
        }
    });
    PoolConfig {
        levels,
        max_blocks_per_seq: 64,
        ..PoolConfig::whole(56, 1000, 1)
    }
}

/// A request's name in the docs.
fn name(request: u64) -> char {
    (b'A' + request as u8) as char
}

/// The example in one mode, a line for each step in which something is decided.
struct Story {
    h: Harness,
    /// Blocks and what they are called, as long as a sequence holds them.
    blocks: BTreeMap<BlockId, String>,
    lines: Vec<String>,
}

impl Story {
    fn run(mode: Mode, admission: Admission) -> String {
        let config = Config {
            mode,
            admission,
            headroom_tokens: 16,
            ..config()
        };
        let mut story = Self {
            h: Harness::new(config, pool()),
            blocks: BTreeMap::new(),
            lines: Vec::new(),
        };
        for id in 0..4 {
            story.h.arrive(request(id, 384, 65));
        }
        let mut stalls = 0;
        while let Some(plan) = story.h.plan() {
            let mut said = story.notices();
            story.name_blocks(&plan);
            let stats = story.h.scheduler.stats();
            if stats.stalls > stalls {
                said.push(format!("{} wait", stats.stalls - stalls));
                stalls = stats.stalls;
            }
            let shrinks: Vec<_> = plan
                .shrinks
                .iter()
                .map(|job| {
                    let name = Self::name_of(&story.blocks, job.block, job.live);
                    format!("{name} {}>{}", job.old.len(), job.new.len())
                })
                .collect();
            if !shrinks.is_empty() {
                said.push(format!("shrink {}", shrinks.join(" ")));
            }
            story.h.done(&plan);
            said.extend(story.notices());
            if !said.is_empty() {
                let (step, usage) = (plan.step.0, stats.blocks);
                let line = format!(
                    "{step:>4} {:>5} {:>7}  {}",
                    usage.frames_live,
                    usage.frames_cached,
                    said.join("; ")
                );
                story.lines.push(line);
            }
        }
        story.lines.join("\n")
    }

    fn name_of(blocks: &BTreeMap<BlockId, String>, block: BlockId, live: bool) -> &str {
        if live { &blocks[&block] } else { "cached" }
    }

    /// Notices since the last call, in words.
    fn notices(&mut self) -> Vec<String> {
        let notices = std::mem::take(&mut self.h.notices);
        let said = notices.iter().map(|notice| match notice {
            Notice::Admitted { request, .. } => format!("admit {}", name(request.0)),
            Notice::Preempted { request, .. } => format!("preempt {}", name(request.0)),
            Notice::Finished { request, .. } => format!("{} ends", name(request.0)),
            Notice::Rejected { reason, .. } => panic!("{reason}"),
        });
        said.collect()
    }

    fn name_blocks(&mut self, plan: &StepPlan) {
        for slice in &plan.slices {
            let table = self.h.scheduler.blocks().table(slice.seq);
            for (index, &block) in table.ids().iter().enumerate() {
                let name = format!("{}{index}", name(slice.request.0));
                self.blocks.insert(block, name);
            }
        }
    }
}

/// The example of a section of the docs.
fn documented(section: &str) -> &'static str {
    let heading = format!("\n## {section}\n");
    let (_, text) = DOCS.split_once(&heading).expect("the section exists");
    let (_, text) = text.split_once("```text\n").expect("it has an example");
    let (lines, _) = text.split_once("\n```").expect("the example ends");
    lines
}

#[test]
fn preempt_only() {
    let story = Story::run(Mode::PreemptOnly, Admission::Degrade);
    assert_eq!(story, documented("preempt-only"), "\n{story}");
}

#[test]
fn progressive() {
    let story = Story::run(Mode::Progressive, Admission::Degrade);
    assert_eq!(story, documented("progressive"), "\n{story}");
}

#[test]
fn progressive_with_a_queue() {
    let story = Story::run(Mode::Progressive, Admission::Queue);
    let section = "progressive, admission `queue`";
    assert_eq!(story, documented(section), "\n{story}");
}

#[test]
fn static_mode() {
    let story = Story::run(Mode::Static, Admission::Degrade);
    assert_eq!(story, documented("static"), "\n{story}");
}
