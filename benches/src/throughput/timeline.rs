//! What the engine holds and has done, ten times a second while a workload runs.

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use ebb_serving::core::{EngineHandle, EngineState};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::csv::Csv;

/// What a row says behind the setting: seconds since it was begun, steps since then, sequences
/// running and waiting, GiB that live sequences hold, that the prefix cache alone holds and that
/// are promised, mean bits of all that is stored, blocks shrunk since then, live and cached, GiB of
/// them before that, and how often a sequence waited for memory.
const COLUMNS: &str = "at_s,steps,running,waiting,live_gib,cached_gib,promised_gib,stored_bits,\
                       shrinks_live,shrinks_cached,shrunk_gib,stalls";
const PERIOD: Duration = Duration::from_millis(100);
const GIB: f64 = (1u64 << 30) as f64;

/// Looks at an engine until it is stopped.
#[derive(Debug)]
pub(crate) struct Timeline {
    stop: oneshot::Sender<()>,
    rows: JoinHandle<Vec<String>>,
}

impl Timeline {
    /// Begins to look at an engine once it is idle; from then on time and counts count. An answer's
    /// reader may have its end before the engine has said that its last step is over.
    pub(crate) async fn begin(engine: &EngineHandle) -> Self {
        let mut before = engine.state();
        while before.running + before.waiting > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            before = engine.state();
        }
        let (engine, begin) = (engine.clone(), Instant::now());
        let (stop, mut stopped) = oneshot::channel();
        let rows = tokio::spawn(async move {
            let mut rows = Vec::new();
            let mut ticks = tokio::time::interval(PERIOD);
            loop {
                tokio::select! {
                    _ = ticks.tick() => rows.push(row(begin, &before, &engine.state())),
                    _ = &mut stopped => {
                        rows.push(row(begin, &before, &engine.state()));
                        return rows;
                    }
                }
            }
        });
        Self { stop, rows }
    }

    /// Stops looking and writes what was seen, behind columns that say of what.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) async fn end(
        self,
        columns: &str,
        setting: &str,
        path: &Path,
    ) -> Result<(), Box<dyn Error>> {
        drop(self.stop);
        let rows = self.rows.await?;
        let mut csv = Csv::file(&format!("{columns},{COLUMNS}"), path)?;
        for row in rows {
            csv.line(&format!("{setting},{row}"))?;
        }
        Ok(())
    }
}

fn row(begin: Instant, before: &EngineState, now: &EngineState) -> String {
    let mut row = format!(
        "{:.3},{},{},{}",
        begin.elapsed().as_secs_f64(),
        now.steps - before.steps,
        now.running,
        now.waiting
    );
    let (kv, kv_before) = (&now.kv, &before.kv);
    for bytes in [now.kv_bytes_live, now.kv_bytes_cached, kv.promised_bytes] {
        let _ = write!(row, ",{:.3}", bytes as f64 / GIB);
    }
    let _ = write!(
        row,
        ",{:.2},{},{},{:.3},{}",
        kv.stored_bits,
        kv.shrinks_live - kv_before.shrinks_live,
        kv.shrinks_cached - kv_before.shrinks_cached,
        (kv.shrunk_bytes - kv_before.shrunk_bytes) as f64 / GIB,
        kv.stalls - kv_before.stalls
    );
    row
}
