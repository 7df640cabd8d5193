//! A page to look at: chat with the served model, and who holds the KV pool at how many bits.
//!
//! | route | what |
//! |---|---|
//! | `GET /` and `GET /page/…` | the page, its style and its scripts |
//! | `GET /kv_pool` | the engine and its pool as one JSON object |
//!
//! The files are part of the program and need nothing from elsewhere: a policy in their headers
//! keeps a browser from fetching anything of another origin. The page chats by
//! `/v1/chat/completions`, as any client does, with the key that its user gives it. What is served
//! here only reads, and tells nothing of what requests say, so it is open without a key.

mod files;
mod pool;

#[cfg(test)]
mod tests;

use axum::Router;
use axum::routing::get;

use crate::front_end::Engine;
use crate::http::Api;

/// Every path of the page: what is answered without a key.
pub(crate) const OPEN_PATHS: [&str; 14] = [
    "/",
    "/page/page.css",
    "/page/icon.svg",
    "/page/api.js",
    "/page/buttons.js",
    "/page/chat.js",
    "/page/colours.js",
    "/page/load.js",
    "/page/map.js",
    "/page/page.js",
    "/page/pool.js",
    "/page/requests.js",
    "/page/tide.js",
    "/kv_pool",
];

/// The routes.
pub(crate) fn router<E: Engine>(api: &Api<E>) -> Router {
    let state = pool::State::new(api);
    OPEN_PATHS.into_iter().fold(Router::new(), |router, path| {
        let answer = match files::file(path) {
            Some(file) => get(move || async move { file.response() }),
            None => get(pool::look::<E>).with_state(state.clone()),
        };
        router.route(path, answer)
    })
}
