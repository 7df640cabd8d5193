//! A log of trajectories, as `ebb replay` reads it.

use ebb_kernels::kv::KvGeometry;
use ebb_models::model::Identity;
use ebb_serving::trajectory::read;

use crate::scratch::Scratch;
use crate::sentence::assert_sentence;

/// Tokens of the model that the log should be of.
const VOCAB: usize = 300;
/// Its pages.
pub(crate) const GEOMETRY: KvGeometry = KvGeometry {
    layers: 1,
    kv_heads: 1,
    head_dim: 16,
    windowed: ebb_kernels::kv::WindowedLayers::NONE,
};

/// The model that the log should be of.
pub(crate) fn identity() -> Identity {
    Identity {
        name: "fuzz".to_owned(),
        config: "c".to_owned(),
        weights: "w".to_owned(),
    }
}

pub(crate) fn run(bytes: &[u8]) {
    thread_local!(static FOLDER: Scratch = Scratch::new());
    let path = FOLDER.with(|folder| folder.write("log.jsonl", bytes));
    let (header, trajectories) = match read(&path, &identity(), VOCAB) {
        Ok(log) => log,
        Err(error) => return assert_sentence(&error),
    };
    if let Err(clause) = header.formats(GEOMETRY) {
        assert_sentence(&clause);
    }
    let lines = bytes.split(|&byte| byte == b'\n').count();
    let mut read = 0;
    for trajectory in trajectories {
        read += 1;
        assert!(read < lines.max(2), "more trajectories than lines");
        match trajectory {
            Ok(it) => {
                assert!(it.computed() < it.prompt.len() + it.tokens.len());
                let text = serde_json::to_vec(&it).expect("what was read can be written");
                let again = serde_json::from_slice(&text).expect("and read again");
                assert_eq!(it, again);
            }
            Err(error) => {
                assert!(error.is_one_line(), "{error}");
                assert_sentence(&error);
            }
        }
    }
}
