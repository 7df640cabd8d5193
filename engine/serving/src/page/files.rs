//! The files of the page, which are part of the program.

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse as _, Response};

/// The page runs its own scripts alone, speaks to its own server alone, and is shown in no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// A file and its type.
#[derive(Clone, Copy)]
pub(super) struct File {
    kind: &'static str,
    text: &'static str,
}

impl File {
    const fn script(text: &'static str) -> Self {
        let kind = "text/javascript; charset=utf-8";
        Self { kind, text }
    }

    pub(super) fn response(self) -> Response {
        let header = |name: HeaderName, value| (name, HeaderValue::from_static(value));
        let headers = [
            header(CONTENT_TYPE, self.kind),
            header(CONTENT_SECURITY_POLICY, POLICY),
            header(X_CONTENT_TYPE_OPTIONS, "nosniff"),
            header(REFERRER_POLICY, "no-referrer"),
            // The next version of the program has other files under these names.
            header(CACHE_CONTROL, "no-cache"),
        ];
        (headers, self.text).into_response()
    }
}

/// The file at a path.
pub(super) fn file(path: &str) -> Option<File> {
    Some(match path {
        "/" => File {
            kind: "text/html; charset=utf-8",
            text: include_str!("page.html"),
        },
        "/page/page.css" => File {
            kind: "text/css; charset=utf-8",
            text: include_str!("page.css"),
        },
        "/page/icon.svg" => File {
            kind: "image/svg+xml",
            text: include_str!("icon.svg"),
        },
        "/page/api.js" => File::script(include_str!("api.js")),
        "/page/buttons.js" => File::script(include_str!("buttons.js")),
        "/page/chat.js" => File::script(include_str!("chat.js")),
        "/page/colours.js" => File::script(include_str!("colours.js")),
        "/page/load.js" => File::script(include_str!("load.js")),
        "/page/map.js" => File::script(include_str!("map.js")),
        "/page/page.js" => File::script(include_str!("page.js")),
        "/page/pool.js" => File::script(include_str!("pool.js")),
        "/page/requests.js" => File::script(include_str!("requests.js")),
        "/page/tide.js" => File::script(include_str!("tide.js")),
        _ => return None,
    })
}
