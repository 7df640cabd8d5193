//! Calls that end alone: with their caller, or by a bug of their own.

use std::future::Future;

use tokio::task::JoinHandle;

/// A task that ends with whoever waits for it: a call whose client left asks for nothing more.
struct Bound<T>(JoinHandle<T>);

impl<T> Drop for Bound<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The result of a future that may panic, none if it did. It goes no further than its caller waits.
pub(crate) async fn contained<T, F>(run: F) -> Option<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    match (&mut Bound(tokio::spawn(run)).0).await {
        Ok(result) => Some(result),
        Err(_) => {
            // What the panic said was told where it was raised; it may quote a client's text.
            tracing::error!("a call failed because of a bug in the server");
            None
        }
    }
}
