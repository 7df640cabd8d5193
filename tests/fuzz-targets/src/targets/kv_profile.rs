//! A KV profile.

use ebb_serving::kv_profile::{Profile, width};

use crate::scratch::Scratch;
use crate::sentence::assert_sentence;

pub(crate) fn run(bytes: &[u8]) {
    thread_local!(static FOLDER: Scratch = Scratch::new());
    FOLDER.with(|folder| {
        let path = folder.write("profile.json", bytes);
        let profile = match Profile::read(&path) {
            Ok(profile) => profile,
            Err(error) => return assert_sentence(&error),
        };
        let text = serde_json::to_vec(&profile).expect("what was read can be written");
        let again = Profile::read(&folder.write("profile.json", &text));
        assert_eq!(again.as_ref(), Ok(&profile), "written and read again");
        follow(&profile);
    });
}

/// What a server does with a profile.
fn follow(profile: &Profile) {
    let geometry = profile.geometry();
    let floors = profile.floor_formats().expect("it was checked");
    assert_eq!(floors.len(), geometry.layers * 2);
    // A frame of a tiny model may be too small for the records of a format.
    let least = match width(geometry, &floors) {
        Ok(least) => least,
        Err(clause) => return assert_sentence(&clause),
    };
    for bits in [
        None,
        Some(16.0),
        Some(least),
        Some(4.0),
        Some(0.0),
        Some(f64::NAN),
    ] {
        let changes = match profile.changes(geometry, bits) {
            Ok(changes) => changes,
            Err(error) => {
                assert_sentence(&error);
                continue;
            }
        };
        assert!(changes.len() <= profile.shrink_order().len());
        let formats = profile.formats(geometry, bits, profile.protect());
        let formats = formats.expect("its changes are sound");
        assert_eq!(formats.sealed.len(), floors.len());
    }
    if let Some(recent) = &profile.recent {
        for layer in 0..geometry.layers {
            for side in [ebb_kernels::kv::Side::K, ebb_kernels::kv::Side::V] {
                assert!(recent.permille(layer, side) < 1000);
            }
        }
    }
}
