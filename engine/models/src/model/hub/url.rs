//! URLs of the hub: parts percent-encoded, redirects resolved, origins compared.

use ureq::http::Uri;

/// `text` where a part of a path may stand; `/` stays where `slash` says so.
pub(super) fn encoded(text: &str, slash: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            b'/' if slash => out.push('/'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// Scheme, host and port: what a token is for.
pub(super) fn origin(uri: &Uri) -> Option<(String, String, u16)> {
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let default = match scheme.as_str() {
        "https" => 443,
        "http" => 80,
        _ => return None,
    };
    let host = uri.host()?.to_ascii_lowercase();
    Some((scheme, host, uri.port_u16().unwrap_or(default)))
}

/// Where `location`, the header of a redirect from `from`, leads; `None` where it leads to nothing
/// that HTTP can ask, or from HTTPS to plain HTTP.
pub(super) fn redirected(from: &Uri, location: &str) -> Option<Uri> {
    let (scheme, authority) = (from.scheme_str()?, from.authority()?);
    let is_absolute = location
        .split_once("://")
        .is_some_and(|(scheme, _)| scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    let text = if is_absolute {
        location.to_owned()
    } else if let Some(rest) = location.strip_prefix("//") {
        format!("{scheme}://{rest}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else {
        let folder = from
            .path()
            .rsplit_once('/')
            .map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{location}")
    };
    let to: Uri = text.parse().ok()?;
    let (new_scheme, ..) = origin(&to)?;
    (scheme != "https" || new_scheme == "https").then_some(to)
}

/// Whether the host is this machine, which no proxy stands before.
pub(super) fn is_loopback(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let address = host.parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_where_browsers_go() {
        let from: Uri = "https://hub:8/a/b/c?x=1".parse().expect("a URL");
        let to = |location: &str| redirected(&from, location).map(|uri| uri.to_string());
        let is = |location: &str, expected: &str| {
            assert_eq!(to(location).as_deref(), Some(expected), "{location}");
        };
        is("https://cdn/x?sig=1", "https://cdn/x?sig=1");
        is("//cdn/x", "https://cdn/x");
        is("/api/y", "https://hub:8/api/y");
        is("d", "https://hub:8/a/b/d");
        is("/y?u=http://z", "https://hub:8/y?u=http://z");
        for refused in [
            "http://cdn/x",
            "file:///etc/passwd",
            "ftp://x/y",
            "https://",
        ] {
            assert_eq!(to(refused), None, "{refused}");
        }
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let origin_of = |text: &str| origin(&text.parse().expect("a URL"));
        assert_eq!(origin_of("https://A.b/x"), origin_of("https://a.B:443/y"));
        assert_ne!(origin_of("http://a/x"), origin_of("https://a/x"));
        assert_ne!(origin_of("http://a:1/x"), origin_of("http://a:2/x"));
        assert_ne!(origin_of("http://a/x"), origin_of("http://a.b/x"));
    }

    #[test]
    fn parts_of_a_path_are_encoded() {
        assert_eq!(encoded("refs/pr/3", false), "refs%2Fpr%2F3");
        assert_eq!(encoded("Q4/a b#?%.gguf", true), "Q4/a%20b%23%3F%25.gguf");
        assert_eq!(encoded("é", true), "%C3%A9");
    }
}
