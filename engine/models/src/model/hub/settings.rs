//! Where models of the hub come from and where they are kept: the variables of Hugging Face's
//! tools.

use std::ffi::OsString;
use std::fmt;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

const ENDPOINT: &str = "https://huggingface.co";

/// What a download needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubSettings {
    /// Folders in the layout of the tools' cache. A model is looked for in each, and downloaded
    /// into the first.
    pub caches: Vec<PathBuf>,
    /// Where the hub answers, such as `https://huggingface.co`.
    pub endpoint: String,
    /// Sent to the endpoint, and to nobody else.
    pub token: Option<Token>,
    /// The variable that forbids to ask the hub, if one does.
    pub offline: Option<&'static str>,
    /// How long to wait for the hub.
    pub patience: Patience,
}

/// How long to wait for the hub, and how often to ask again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Until a connection stands.
    pub connect: Duration,
    /// Until an answer begins, and between two pieces of it.
    pub read: Duration,
    /// Time in which a download that brings less than [`Patience::SLOW_BYTES`] counts as cut.
    pub slow: Duration,
    /// Attempts in a row that bring less than [`Patience::SLOW_BYTES`].
    pub attempts: u32,
    /// After the first such attempt; doubled after each.
    pub wait: Duration,
    /// The longest that the hub may make us wait (`Retry-After`).
    pub retry_after_max: Duration,
}

impl Patience {
    /// See [`Patience::slow`].
    pub const SLOW_BYTES: u64 = 64 << 10;
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            read: Duration::from_secs(30),
            slow: Duration::from_secs(60),
            attempts: 5,
            wait: Duration::from_secs(1),
            retry_after_max: Duration::from_secs(300),
        }
    }
}

/// An access token. It is not shown, whoever prints what holds it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Of text with spaces or line ends around it; `None` for an empty one.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        (!text.is_empty()).then(|| Self(text.to_owned()))
    }

    /// The value of the `Authorization` header; `None` if no header can hold it.
    pub(super) fn header(&self) -> Option<String> {
        let plain = self.0.bytes().all(|byte| byte.is_ascii_graphic());
        plain.then(|| format!("Bearer {}", self.0))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl HubSettings {
    /// Those of the environment: call it once, at the edge of the program.
    pub fn from_env() -> Self {
        Self::read(|name| std::env::var_os(name))
    }

    /// The same, of variables that `variable` reads.
    pub fn read(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let text = |name: &str| {
            let value = variable(name)?.into_string().ok()?;
            (!value.trim().is_empty()).then(|| value.trim().to_owned())
        };
        let is_set = |name: &&str| {
            let value = text(name).unwrap_or_default().to_lowercase();
            ["1", "true", "yes", "on"].contains(&value.as_str())
        };
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        let token = match is_set(&"HF_HUB_DISABLE_IMPLICIT_TOKEN") {
            true => None,
            false => ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"]
                .into_iter()
                .find_map(text)
                .and_then(|text| Token::new(&text))
                .or_else(|| token_file(&variable)),
        };
        let offline = ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"];
        Self {
            caches: folder(&variable).into_iter().collect(),
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token,
            offline: offline.into_iter().find(is_set),
            patience: Patience::default(),
        }
    }
}

/// The folder of the cache: `$HF_HUB_CACHE`, else `$HF_HOME/hub`, else
/// `$XDG_CACHE_HOME/huggingface/hub`, else `$HOME/.cache/huggingface/hub`; `None` when no variable
/// helps.
fn folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    path(&variable, "HF_HUB_CACHE")
        .or_else(|| path(&variable, "HUGGINGFACE_HUB_CACHE"))
        .or_else(|| Some(home(&variable)?.join("hub")))
}

/// Where Hugging Face's tools keep what is theirs.
fn home(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    path(&variable, "HF_HOME")
        .or_else(|| Some(path(&variable, "XDG_CACHE_HOME")?.join("huggingface")))
        .or_else(|| Some(path(&variable, "HOME")?.join(".cache/huggingface")))
}

/// A path in a variable; `~` in front is `$HOME`, also where no shell has seen it.
fn path(variable: impl Fn(&str) -> Option<OsString>, name: &str) -> Option<PathBuf> {
    let given = variable(name)
        .filter(|v| !v.is_empty())
        .map(PathBuf::from)?;
    match (given.strip_prefix("~"), variable("HOME")) {
        (Ok(rest), Some(home)) if !home.is_empty() => Some(PathBuf::from(home).join(rest)),
        _ => Some(given),
    }
}

/// What `hf auth login` has written.
fn token_file(variable: impl Fn(&str) -> Option<OsString>) -> Option<Token> {
    let file = path(&variable, "HF_TOKEN_PATH").or_else(|| Some(home(&variable)?.join("token")))?;
    match std::fs::read_to_string(&file) {
        Ok(text) => Token::new(&text),
        Err(error) => {
            if error.kind() != ErrorKind::NotFound {
                let path = file.display();
                tracing::warn!("the token in {path} is left out of account: {error}");
            }
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(set: &[(&str, &str)]) -> HubSettings {
        let set: Vec<(String, OsString)> = set
            .iter()
            .map(|(k, v)| ((*k).into(), (*v).into()))
            .collect();
        HubSettings::read(move |name| Some(set.iter().find(|(k, _)| k == name)?.1.clone()))
    }

    #[test]
    fn the_folder_is_where_the_tools_have_it() {
        let with = |set: &[(&str, &str)]| {
            let caches = with(set).caches;
            caches.first().map(|path| path.display().to_string())
        };
        let home = ("HOME", "/h");
        assert_eq!(with(&[]), None);
        assert_eq!(with(&[home]).as_deref(), Some("/h/.cache/huggingface/hub"));
        let xdg = ("XDG_CACHE_HOME", "/x");
        assert_eq!(with(&[home, xdg]).as_deref(), Some("/x/huggingface/hub"));
        let hf = ("HF_HOME", "/hf");
        assert_eq!(with(&[home, xdg, hf]).as_deref(), Some("/hf/hub"));
        assert_eq!(with(&[hf, ("HF_HUB_CACHE", "/c")]).as_deref(), Some("/c"));
        assert_eq!(
            with(&[home, ("HF_HOME", "~/x")]).as_deref(),
            Some("/h/x/hub")
        );
        assert_eq!(
            with(&[hf, ("HF_HUB_CACHE", "")]).as_deref(),
            Some("/hf/hub")
        );
    }

    #[test]
    fn variables_mean_what_they_mean_to_the_tools() {
        let plain = with(&[]);
        assert_eq!(plain.endpoint, "https://huggingface.co");
        assert_eq!((plain.token, plain.offline), (None, None));
        let set = with(&[("HF_ENDPOINT", "http://mirror:1/"), ("HF_HUB_OFFLINE", "0")]);
        assert_eq!(
            (set.endpoint.as_str(), set.offline),
            ("http://mirror:1", None)
        );
        let offline = |name, value| with(&[(name, value)]).offline;
        assert_eq!(offline("HF_HUB_OFFLINE", "1"), Some("HF_HUB_OFFLINE"));
        assert_eq!(offline("HF_HUB_OFFLINE", "Yes"), Some("HF_HUB_OFFLINE"));
        let transformers = "TRANSFORMERS_OFFLINE";
        assert_eq!(offline(transformers, "true"), Some(transformers));
    }

    #[test]
    fn the_token_is_of_a_variable_or_a_file_and_is_not_shown() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let at = home.path().to_str().expect("UTF-8");
        let file = home.path().join("token");
        assert_eq!(with(&[("HF_HOME", at)]).token, None);
        std::fs::write(&file, "hf_file\n").expect("write it");
        assert_eq!(with(&[("HF_HOME", at)]).token, Token::new("hf_file"));
        let path = file.to_str().expect("UTF-8");
        assert_eq!(
            with(&[("HF_TOKEN_PATH", path)]).token,
            Token::new("hf_file")
        );
        let both = [("HF_HOME", at), ("HF_TOKEN", " hf_variable ")];
        assert_eq!(with(&both).token, Token::new("hf_variable"));
        let never = [("HF_TOKEN", "hf_x"), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")];
        assert_eq!(with(&never).token, None);
        assert!(!format!("{:?}", with(&both)).contains("hf_variable"));
        assert_eq!(Token::new("a\nb").and_then(|token| token.header()), None);
    }
}
