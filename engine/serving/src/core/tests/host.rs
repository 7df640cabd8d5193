//! What the host does between two steps: a measurement, run by hand with `--ignored --nocapture`.

use std::time::{Duration, Instant};

use ebb_block_manager::PoolConfig;
use ebb_kernels::backend::StepInput;
use ebb_kernels::kv::KvGeometry;
use ebb_scheduler::{ChoiceOutput, Config, Event, Request, RequestId, Scheduler, StepPlan};

use crate::core::step;

fn done(scheduler: &mut Scheduler, plan: StepPlan) {
    let outputs = plan.slices.iter().filter(|s| s.logits.choices() > 0);
    let outputs = outputs
        .map(|s| ChoiceOutput {
            request: s.request,
            choice: 0,
            token: 5,
            finish: false,
        })
        .collect();
    scheduler.apply(Event::StepDone {
        step: plan.step,
        outputs,
        failed_shrinks: vec![],
    });
    scheduler.recycle(plan);
}

#[test]
#[ignore = "a measurement"]
fn host_time_of_a_decode_step() {
    let geometry = KvGeometry {
        layers: 32,
        kv_heads: 8,
        head_dim: 128,
        windowed: ebb_kernels::kv::WindowedLayers::NONE,
    };
    let layout = geometry.frame_layout();
    for tokens in [1152, 8192] {
        let frames = 258 * (tokens / 128 + 3) * layout.frames_per_block();
        let pool = PoolConfig::whole(
            frames as u32,
            layout.frame_bytes as u64,
            layout.frames_per_sub_block as u32,
        );
        let config = Config {
            max_step_tokens: 1 << 16,
            prefill_chunk: 8192,
            ..Config::default()
        };
        let mut scheduler = Scheduler::new(config, pool).expect("sound limits");
        for id in 0..256 {
            let prompt: Vec<u32> = (0..tokens as u32 - 20).map(|t| t ^ (id << 20)).collect();
            scheduler.apply(Event::Arrive(Request::new(
                RequestId(id.into()),
                prompt,
                200,
            )));
        }
        let mut input = StepInput::default();
        let mut times = Vec::new();
        while times.len() < 30 {
            let began = Instant::now();
            let plan = scheduler
                .plan()
                .unwrap_or_else(|| panic!("{:?}", scheduler.stats()));
            let planned = began.elapsed();
            step::fill(&mut input, &plan, true);
            let filled = began.elapsed() - planned;
            if plan.slices.len() == 256 && plan.tokens.len() == 256 {
                times.push((planned + filled, planned, filled, plan.deltas.len()));
            }
            done(&mut scheduler, plan);
        }
        times.sort_unstable();
        let (_, planned, filled, deltas): (Duration, Duration, Duration, usize) = times[15];
        println!(
            "256 sequences of {tokens} tokens: plan {planned:?} ({deltas} deltas), fill {filled:?}"
        );
    }
}
