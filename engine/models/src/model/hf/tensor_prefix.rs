//! What stands before the names of a language model's tensors in a checkpoint that has others, too.

/// Where a checkpoint has the tensors of its language model: what it has in place of `model.` and
/// of `lm_head.` at the beginning of their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TensorPrefix {
    model: &'static str,
    head: &'static str,
}

impl TensorPrefix {
    /// As a language model alone has them.
    const PLAIN: Self = Self {
        model: MODEL,
        head: HEAD,
    };

    /// Those that transformers has written, the newest first.
    const ALL: [Self; 4] = [
        Self {
            model: "model.language_model.",
            head: HEAD,
        },
        Self {
            model: "language_model.model.",
            head: "language_model.lm_head.",
        },
        Self {
            model: "model.text_model.",
            head: HEAD,
        },
        Self::PLAIN,
    ];

    /// Where the tensor is that a language model alone would call `name`.
    pub(super) fn find(name: &str, is_there: impl Fn(&str) -> bool) -> Self {
        let found = Self::ALL
            .into_iter()
            .find(|prefix| is_there(&prefix.name(name)));
        found.unwrap_or(Self::PLAIN)
    }

    /// The name here of what a language model alone calls `name`.
    pub(super) fn name(self, name: &str) -> String {
        for (from, to) in [(MODEL, self.model), (HEAD, self.head)] {
            if let Some(rest) = name.strip_prefix(from) {
                return format!("{to}{rest}");
            }
        }
        name.to_owned()
    }

    /// What any checkpoint calls what a language model alone calls `name`.
    pub(super) fn spellings(name: &str) -> Vec<String> {
        let mut names: Vec<_> = Self::ALL.iter().map(|prefix| prefix.name(name)).collect();
        names.dedup();
        names
    }

    /// Whether a tensor of this name belongs to the language model.
    pub(super) fn has(self, name: &str) -> bool {
        name.starts_with(self.model) || name.starts_with(self.head)
    }
}

/// How a language model's tensors begin, without and with its output projection.
const MODEL: &str = "model.";
const HEAD: &str = "lm_head.";
