//! Requests with `min_kv_bits`.

use crate::common::{Harness, request};
use crate::{
    at_least, bits, bits_at_end, levels, progressive, same_prompt, seq_of, shrinking_pool,
};
use ebb_block_manager::precision::MinBits;
use ebb_scheduler::{Config, Event, RequestId};

#[test]
fn one_that_insists_on_16_bit_keeps_it_among_those_that_shrink() {
    let mut h = Harness::new(progressive(), shrinking_pool(600));
    h.arrive(at_least(16, request(1, 400, 300)));
    for id in 2..6 {
        h.arrive(request(id, 600, 300));
    }
    while h.end_of(1, 0).is_none() {
        let plan = h.planned();
        if let Some(seq) = seq_of(&plan, 1) {
            assert!(levels(&h, seq).iter().all(|p| *p == 0));
        }
        h.done(&plan);
    }
    h.run_dry();
    let read = bits_at_end(&h, 1);
    assert_eq!((read.lowest, read.mean_centibits), (16, 1600));
    assert!((2..6).all(|id| bits_at_end(&h, id).lowest < 16));
}

#[test]
fn bounds_between_are_kept_as_well() {
    for bound in [8, 4, 2] {
        let floor = shrinking_pool(100).floor_frames(700 + 199, MinBits(bound), 0);
        let mut h = Harness::new(progressive(), shrinking_pool(2 * floor as u32));
        h.arrive(at_least(bound, request(1, 700, 200)));
        h.arrive(at_least(bound, request(2, 700, 200)));
        while let Some(plan) = h.plan() {
            for slice in &plan.slices {
                let all = bits(&h, slice.seq);
                assert!(all.iter().all(|b| *b >= bound), "{all:?} under {bound}");
            }
            h.done(&plan);
        }
        assert_eq!(bits_at_end(&h, 1).lowest, bound);
    }
}

#[test]
fn a_shrunk_prefix_serves_those_who_take_it_and_no_others() {
    let mut h = Harness::new(progressive(), shrinking_pool(130));
    let first = request(1, 600, 2);
    h.arrive(first.clone());
    h.run_dry();
    assert!(bits_at_end(&h, 1).lowest < 16);
    h.arrive(same_prompt(2, &first, 600, 2));
    h.run_dry();
    h.arrive(at_least(16, same_prompt(3, &first, 300, 2)));
    h.run_dry();
    let [_, (2, degraded), (3, at_16_bit)] = h.admissions()[..] else {
        panic!("{:?}", h.admissions());
    };
    // Of the 300 tokens two blocks are whole, and the second has shrunk.
    assert!(degraded > 128 && at_16_bit <= 128);
    assert_eq!(bits_at_end(&h, 3).lowest, 16);
    assert_eq!(bits_at_end(&h, 3).mean_centibits, 1600);
}

#[test]
fn a_16_bit_block_that_was_computed_from_shrunk_ones_is_not_served_as_16_bit() {
    let limits = Config {
        prefill_chunk: 128,
        ..progressive()
    };
    let mut h = Harness::new(limits, shrinking_pool(430));
    // The one with `min_kv_bits` makes the other shrink.
    h.arrive(at_least(16, request(9, 1270, 150)));
    let first = request(1, 4 * 128 + 10, 200);
    while h.scheduler.stats().tokens_scheduled < 1270 {
        h.step();
    }
    let free = h.scheduler.blocks().available();
    assert!(free < 130, "{free}");
    let degraded = loop {
        if h.scheduler.stats().requests == 1 {
            h.arrive(first.clone());
        }
        let plan = h.step();
        if let Some(seq) = seq_of(&plan, 1)
            && h.scheduler.blocks().committed(seq) > 4 * 128
        {
            break seq;
        }
    };
    let levels_now = levels(&h, degraded);
    assert!(levels_now[0] > 0 && levels_now[3] == 0, "{levels_now:?}");
    assert!(h.scheduler.blocks().bits(degraded).lowest < 16);
    h.apply(Event::Cancel(RequestId(9)));
    // Its first block is computed again at 16 bit, and the fourth is now published behind it.
    h.arrive(at_least(16, same_prompt(2, &first, 129, 50)));
    h.step();
    h.step();
    h.arrive(at_least(16, same_prompt(3, &first, 520, 2)));
    h.run_dry();
    assert_eq!(h.admissions()[2..], [(2, 0), (3, 128)]);
    let read = bits_at_end(&h, 3);
    assert_eq!((read.lowest, read.mean_centibits), (16, 1600));
}
