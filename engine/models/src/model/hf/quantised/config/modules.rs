//! Lists of modules in a configuration: by name, by pattern, by class.

use std::collections::{BTreeSet, HashSet};

use fancy_regex::{Regex, RegexBuilder};

use crate::model::error::Refusal;
use crate::model::hf::json::Object;
use crate::model::hf::tensor_prefix::TensorPrefix;

/// The most patterns in a list, and the longest one in bytes. Every module is compared with each.
const PATTERNS_MAX: usize = 4096;
const PATTERN_BYTES_MAX: usize = 1024;

/// What a regular expression may cost: the bytes it is compiled to, and the steps of a comparison.
const COMPILED_BYTES_MAX: usize = 128 << 10;
const STEPS_MAX: usize = 10_000;

/// What is put around a pattern, which has to match from a name's beginning on.
const BEGINNING: &str = "^(?:";
const END: &str = ")";

/// How many more regular expressions a configuration may have.
pub(super) struct RegexBudget(usize);

impl RegexBudget {
    const MAX: usize = 512;

    pub(super) fn new() -> Self {
        Self(Self::MAX)
    }
}

/// A module whose weight is looked for.
#[derive(Clone, Debug)]
pub(crate) struct Module {
    /// What the checkpoint calls it.
    pub(crate) name: String,
    /// What versions of transformers call it, which settings may have been written with.
    pub(crate) others: Vec<String>,
    pub(crate) class: Class,
}

impl Module {
    /// That of the weight `tensor`, which a language model alone would call `plain`.
    pub(crate) fn new(tensor: &str, plain: &str, class: Class) -> Self {
        let stem = |tensor: &str| tensor.strip_suffix(".weight").unwrap_or(tensor).to_owned();
        let others = TensorPrefix::spellings(plain);
        Self {
            name: stem(tensor),
            others: others.iter().map(|name| stem(name)).collect(),
            class,
        }
    }
}

/// torch's class of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Linear,
    Embedding,
}

/// How much an entry of a list says of the module that it stands for, most first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Specificity {
    Name,
    Pattern,
    Class,
}

impl Specificity {
    pub(super) const ALL: [Self; 3] = [Self::Name, Self::Pattern, Self::Class];
}

/// What the entries of a list are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syntax {
    /// Names; regular expressions after `re:`, which have to match a name from its beginning on;
    /// classes.
    NamesAndClasses,
    /// Parts of names.
    Parts,
    /// Names of modules with all that is in them, `*` for any text.
    Trees,
}

/// A list of modules.
#[derive(Clone, Debug)]
pub(super) struct ModuleList {
    /// Where it stands.
    field: String,
    names: HashSet<String>,
    patterns: Vec<Pattern>,
    classes: Vec<Class>,
    /// Whether a name stands for what is in the module, too.
    are_trees: bool,
}

#[derive(Clone, Debug)]
enum Pattern {
    Regex {
        regex: Box<Regex>,
        /// Whether it says what a name must not have. Of that a name which the checkpoint does not
        /// use would be free.
        negates: bool,
    },
    /// Any text between these, and a module in it.
    Tree(Vec<String>),
    Part(String),
}

impl ModuleList {
    /// The list in a field, which is empty where there is none.
    pub(super) fn read(
        settings: &Object,
        key: &str,
        syntax: Syntax,
        budget: &mut RegexBudget,
    ) -> Result<Self, Refusal> {
        let entries = settings.typed(key, "a list of names", |list| {
            let entries = list.as_array()?.iter();
            entries
                .map(|entry| entry.as_str())
                .collect::<Option<Vec<_>>>()
        })?;
        let mut list = Self::empty(settings.name(key));
        list.are_trees = syntax == Syntax::Trees;
        for entry in entries.unwrap_or_default() {
            list.add(entry, syntax, budget)?;
        }
        Ok(list)
    }

    pub(super) fn empty(field: String) -> Self {
        Self {
            field,
            names: HashSet::new(),
            patterns: Vec::new(),
            classes: Vec::new(),
            are_trees: false,
        }
    }

    fn add(
        &mut self,
        entry: &str,
        syntax: Syntax,
        budget: &mut RegexBudget,
    ) -> Result<(), Refusal> {
        match syntax {
            Syntax::NamesAndClasses => {
                if let Some(pattern) = entry.strip_prefix("re:") {
                    return self.add_regex(pattern, budget);
                }
                match entry {
                    "Linear" => self.add_class(Class::Linear),
                    "Embedding" => self.add_class(Class::Embedding),
                    name => {
                        self.names.insert(name.to_owned());
                    }
                }
                Ok(())
            }
            Syntax::Parts => self.add_pattern(entry, Pattern::Part(entry.to_owned())),
            Syntax::Trees if entry.contains('*') => {
                let between = entry.split('*').map(str::to_owned);
                self.add_pattern(entry, Pattern::Tree(between.collect()))
            }
            Syntax::Trees => {
                self.names.insert(entry.to_owned());
                Ok(())
            }
        }
    }

    /// Adds a module by its name.
    pub(super) fn add_name(&mut self, name: &str) {
        self.names.insert(name.to_owned());
    }

    fn add_class(&mut self, class: Class) {
        if !self.classes.contains(&class) {
            self.classes.push(class);
        }
    }

    /// Adds a regular expression of Python's, to be matched from a name's beginning on.
    pub(super) fn add_regex(
        &mut self,
        pattern: &str,
        budget: &mut RegexBudget,
    ) -> Result<(), Refusal> {
        self.check(pattern)?;
        let Some(left) = budget.0.checked_sub(1) else {
            let found = format!("more than the {} patterns", RegexBudget::MAX);
            let expected = "no more in all of a configuration";
            return Err(Refusal::invalid(&self.field, found, expected));
        };
        budget.0 = left;
        let regex = RegexBuilder::new(&format!("{BEGINNING}{pattern}{END}"))
            .delegate_size_limit(COMPILED_BYTES_MAX)
            .delegate_dfa_size_limit(COMPILED_BYTES_MAX)
            .backtrack_limit(STEPS_MAX)
            .build();
        match regex {
            Ok(regex) => {
                let negations = ["(?!", "(?<!", "[^"];
                let pattern_of = Pattern::Regex {
                    regex: Box::new(regex),
                    negates: negations.iter().any(|part| pattern.contains(part)),
                };
                self.add_pattern(pattern, pattern_of)
            }
            Err(_) => Err(self.invalid(pattern, "regular expressions that can be compiled")),
        }
    }

    fn add_pattern(&mut self, entry: &str, pattern: Pattern) -> Result<(), Refusal> {
        self.check(entry)?;
        self.patterns.push(pattern);
        Ok(())
    }

    fn check(&self, entry: &str) -> Result<(), Refusal> {
        if self.patterns.len() == PATTERNS_MAX {
            let found = format!("a list of more than {PATTERNS_MAX} patterns");
            return Err(Refusal::invalid(&self.field, found, "fewer"));
        }
        if entry.len() > PATTERN_BYTES_MAX {
            let expected = format!("patterns of at most {PATTERN_BYTES_MAX} bytes");
            let found = format!("one of {} bytes", entry.len());
            return Err(Refusal::invalid(&self.field, found, expected));
        }
        Ok(())
    }

    fn invalid(&self, pattern: &str, expected: &str) -> Refusal {
        let brief: String = pattern.chars().take(80).collect();
        Refusal::invalid(&self.field, format!("{brief:?}"), expected)
    }

    /// An entry that another list has, too, as it is written.
    pub(super) fn common(&self, other: &Self) -> Option<String> {
        let entries = self.entries();
        let others = other.entries();
        entries.intersection(&others).next().cloned()
    }

    /// Names, regular expressions and classes as they are written.
    fn entries(&self) -> BTreeSet<String> {
        let classes = self.classes.iter().map(|class| format!("{class:?}"));
        let patterns = self.patterns.iter().filter_map(|pattern| match pattern {
            Pattern::Regex { regex, .. } => {
                let written = regex.as_str().strip_prefix(BEGINNING)?;
                Some(format!("re:{}", written.strip_suffix(END)?))
            }
            Pattern::Tree(_) | Pattern::Part(_) => None,
        });
        self.names
            .iter()
            .cloned()
            .chain(classes)
            .chain(patterns)
            .collect()
    }

    /// Where the list stands.
    pub(super) fn field(&self) -> &str {
        &self.field
    }

    /// Whether an entry stands for the module: any entry, or one of that specificity.
    pub(super) fn has(
        &self,
        module: &Module,
        specificity: Option<Specificity>,
    ) -> Result<bool, Refusal> {
        let asked = |kind| specificity.is_none_or(|asked| asked == kind);
        let names = std::iter::once(&module.name).chain(&module.others);
        if asked(Specificity::Name) && names.clone().any(|name| self.has_name(name)) {
            return Ok(true);
        }
        if asked(Specificity::Pattern) {
            for pattern in &self.patterns {
                let own = matches!(pattern, Pattern::Regex { negates: true, .. });
                let others = if own { &[][..] } else { &module.others };
                for name in std::iter::once(&module.name).chain(others) {
                    if self.matches(pattern, name)? {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(asked(Specificity::Class) && self.classes.contains(&module.class))
    }

    fn has_name(&self, name: &str) -> bool {
        let dots = name.match_indices('.').map(|(dot, _)| dot);
        let mut trees = dots.filter(|_| self.are_trees).map(|dot| &name[..dot]);
        self.names.contains(name) || trees.any(|tree| self.names.contains(tree))
    }

    fn matches(&self, pattern: &Pattern, name: &str) -> Result<bool, Refusal> {
        match pattern {
            Pattern::Part(part) => Ok(name.contains(part.as_str())),
            Pattern::Tree(between) => Ok(in_tree(between, name)),
            Pattern::Regex { regex, .. } => regex.is_match(name).map_err(|_| {
                let expected = format!("a pattern that takes at most {STEPS_MAX} steps");
                self.invalid(regex.as_str(), &expected)
            }),
        }
    }
}

/// Whether a name, or that of a module around it, is these texts with any other between them.
fn in_tree(between: &[String], name: &str) -> bool {
    let ends = name.match_indices('.').map(|(dot, _)| dot);
    let mut trees = ends.chain([name.len()]).map(|end| &name[..end]);
    trees.any(|tree| is_text_with_gaps(between, tree))
}

fn is_text_with_gaps(between: &[String], text: &str) -> bool {
    let [first, middle @ .., last] = between else {
        return between.iter().any(|only| only == text);
    };
    let Some(mut rest) = text.strip_prefix(first.as_str()) else {
        return false;
    };
    for part in middle {
        match rest.find(part.as_str()) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[&str], syntax: Syntax) -> Result<ModuleList, Refusal> {
        let json = serde_json::json!({ "ignore": entries }).to_string();
        let settings = Object::parse(json.as_bytes())?;
        ModuleList::read(&settings, "ignore", syntax, &mut RegexBudget::new())
    }

    fn linear(name: &str) -> Module {
        Module {
            name: name.to_owned(),
            others: Vec::new(),
            class: Class::Linear,
        }
    }

    fn has(entries: &[&str], syntax: Syntax, name: &str) -> bool {
        let list = list(entries, syntax).expect("a valid list");
        list.has(&linear(name), None).expect("cheap patterns")
    }

    #[test]
    fn entries_are_names_patterns_and_classes() {
        let has = |entry, name| has(&[entry], Syntax::NamesAndClasses, name);
        assert!(has("lm_head", "lm_head") && !has("lm_head", "model.lm_head"));
        assert!(has("re:.*lm_head", "model.lm_head") && !has("re:head", "lm_head"));
        assert!(has(
            "re:.*layers\\.(?!0\\.).*_proj$",
            "model.layers.1.q_proj"
        ));
        assert!(!has(
            "re:.*layers\\.(?!0\\.).*_proj$",
            "model.layers.0.q_proj"
        ));
        assert!(has("re:a|lm", "lm_head") && has("Linear", "x") && !has("Embedding", "x"));
        assert!(!has("model.layers.1", "model.layers.1.q_proj"));
    }

    /// A pattern that excludes a name must not find it under a name that the checkpoint does not
    /// use.
    #[test]
    fn negations_are_of_the_names_that_exist() {
        let mut module = linear("model.layers.0.mlp.up_proj");
        module.others = vec!["language_model.model.layers.0.mlp.up_proj".to_owned()];
        let has = |pattern: &str| {
            let list = list(&[pattern], Syntax::NamesAndClasses).expect("a valid list");
            list.has(&module, None).expect("cheap patterns")
        };
        assert!(!has("re:^(?!model\\.layers).*") && !has("re:[^m].*"));
        assert!(!has("re:.*(?<!^model)\\.layers.*"));
        assert!(has("re:(?!.*down).*proj$") && has("re:language_model\\..*"));
    }

    #[test]
    fn parts_and_trees_are_names_with_less_written_down() {
        assert!(has(&["mlp.gate"], Syntax::Parts, "layers.0.mlp.gate_proj"));
        let tree = |entry, name| has(&[entry], Syntax::Trees, name);
        assert!(tree("model.layers.1", "model.layers.1.q_proj"));
        assert!(!tree("model.layers.1", "model.layers.10.q_proj"));
        assert!(tree(
            "*layers.*.self_attn",
            "model.layers.3.self_attn.q_proj"
        ));
        assert!(tree("*lm_head*", "lm_head") && tree("model*", "model.norm"));
        assert!(!tree("*layers.*.mlp", "model.layers.3.self_attn.q_proj"));
        assert!(!tree("ab*ba", "aba"));
    }

    #[test]
    fn hostile_patterns_are_refused() {
        let refused = |entries: &[&str]| {
            let refusal = list(entries, Syntax::NamesAndClasses).expect_err("refused");
            let sentence = refusal.to_string();
            assert!(sentence.starts_with("`ignore` is "), "{sentence}");
            assert!(sentence.len() < 250, "{sentence}");
        };
        refused(&["re:("]);
        refused(&["re:(?:(?:a{1000}){1000}){1000}"]);
        refused(&[&format!("re:{}", "a".repeat(2000))]);
        refused(&vec!["re:a"; 2000]);
        let list = list(&["re:(?:(a|aa)(?!z))*b"], Syntax::NamesAndClasses).expect("it compiles");
        let module = linear(&format!("{}c", "a".repeat(60)));
        let refusal = list.has(&module, None).expect_err("too many steps");
        assert!(refusal.to_string().contains("steps"), "{refusal}");
    }
}
