//! Models by their names on Hugging Face's hub: found in the cache of its tools, or downloaded
//! into it.
//!
//! What is on disk lies as the tools lay it
//! (<https://huggingface.co/docs/huggingface_hub/guides/manage-cache>), so that either side finds
//! what the other has fetched:
//!
//! ```text
//! models--ORG--NAME/refs/REVISION             the commit that a branch or tag stands for
//! models--ORG--NAME/snapshots/COMMIT/FILE     a relative link to a blob
//! models--ORG--NAME/blobs/ETAG                a file's bytes
//! models--ORG--NAME/blobs/ETAG.incomplete     the first bytes of one, to be resumed
//! .locks/models--ORG--NAME/ETAG.lock          held by the process that writes a blob
//! ```
//!
//! Bytes come by ureq. The crate hf-hub lays the same layout, but it begins interrupted downloads
//! anew, checks no hash, and needs tokio and a second HTTP client.
//!
//! What a hub says is a stranger's: names are checked before they are paths, sizes and answers are
//! bounded, a blob gets its name only once its hash is right, and the token goes to the endpoint's
//! own origin alone.

mod blob;
mod cache;
mod choose;
mod client;
mod download;
mod error;
mod listing;
mod name;
mod retries;
mod settings;
mod url;

pub(super) use cache::{CachedRepository, name_of};
pub use download::HubModel;
pub use error::HubError;
pub use listing::Listing;
pub(super) use name::HubName;
pub use settings::{HubSettings, Patience, Token};
