//! Accounts for one gRPC call: whatever happens to it, it is counted once with its status.

use tonic::{Code, Status};

use super::status::code_name;
use crate::metrics::Recorder;

/// Counts its call when dropped: as closed, or as cancelled (INTERNAL in a panic) when nobody
/// closed it.
pub(super) struct Call {
    recorder: Recorder,
    method: &'static str,
    code: Option<Code>,
}

impl Call {
    pub(super) fn new(recorder: Recorder, method: &'static str) -> Self {
        Self {
            recorder,
            method,
            code: None,
        }
    }

    /// Notes the call's result.
    pub(super) fn close<T>(&mut self, result: Result<T, &Status>) {
        self.code = Some(result.err().map_or(Code::Ok, Status::code));
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let unclosed = if std::thread::panicking() {
            Code::Internal
        } else {
            Code::Cancelled
        };
        let code = code_name(self.code.unwrap_or(unclosed));
        tracing::debug!(method = self.method, code, "call ended");
        self.recorder.rpc(self.method, code);
    }
}
