//! Steps have room for what kernels look at.

use super::*;
use crate::cuda::attention::{Attention, ScoreSpec};
use crate::cuda::ops::HeadSpec;
use crate::formats::FormatId as F;
use crate::kv::KvGeometry;

/// Kernels over shrunk blocks ask for the next unit before they know whether there is one. One of
/// sixteen columns has fewer units than the room is reckoned for.
#[test]
fn a_step_has_room_for_the_units_of_any_kernel() {
    let device = Device::open(0).unwrap();
    for (kv_heads, group, seqs, blocks) in [
        (8, 16, 1, 256),
        (4, 16, 1, 1024),
        (1, 16, 16, 4096),
        (8, 4, 4, 1024),
    ] {
        let geometry = KvGeometry {
            layers: 4,
            kv_heads,
            head_dim: 128,
            windowed: crate::kv::WindowedLayers::NONE,
        };
        let pages = [vec![F::Int4; 8]];
        let layout = KvLayout::new(geometry, geometry.frame_layout(), &pages).unwrap();
        let heads = HeadSpec::plain(geometry, kv_heads * group);
        let rule = SplitRule::default();
        let size = (seqs, blocks);
        let mut attention = {
            let scores = [ScoreSpec::default()];
            Attention::new(
                &device,
                geometry,
                heads,
                &scores,
                size,
                1,
                rule,
                (None, None),
            )
            .unwrap()
        };
        assert!(attention.take_formats(&layout));
        assert_eq!(attention.columns().of_unit, if group > 8 { 16 } else { 4 });
        let capacity = StepCapacity {
            rows: seqs,
            seqs,
            blocks,
        };
        let step = StepBuffers::new(&device, capacity, Default::default(), rule, &attention);
        assert!(step.unwrap().sections.decode[0].units.len() >= attention.room(0) * UNIT_WORDS);
    }
}
