//! Writes the seeds of the corpus: `cargo run -p ebb-fuzz-targets --bin fuzz-seeds`. Inputs that
//! fuzzing found lie beside them under other names and stay.

use std::io;
use std::path::Path;

fn main() -> io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    for (target, name, bytes) in ebb_fuzz_targets::seeds::all() {
        let folder = corpus.join(target);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join(name), bytes)?;
    }
    Ok(())
}
