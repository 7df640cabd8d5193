//! Finds stop strings in text that arrives in pieces.
//!
//! Text that may still turn out to be the beginning of a stop string is held back. Where it ends
//! is a function of the whole text, not of the pieces: the match that ends first, and of those
//! that end together the longest.
//!
//! Special tokens are left out of a choice's text. A stop string that holds one is looked for in
//! the text with them too.

use std::ops::Range;

/// The stop strings of one request, at some point of one choice's text.
#[derive(Clone, Debug, Default)]
pub struct StopChecker {
    stops: Vec<Matcher>,
    /// The matched stop string stays in the text.
    include: bool,
    /// Text not handed out yet, hidden text among it.
    held: String,
    /// Which of its bytes are hidden, ascending.
    hidden: Vec<Range<usize>>,
    matched: bool,
}

/// A stop string was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopMatch {
    /// Which one, an index into the request's list.
    pub index: usize,
}

/// Knuth, Morris and Pratt's automaton of one stop string.
#[derive(Clone, Debug)]
struct Matcher {
    /// Which stop string.
    index: usize,
    /// It reads hidden text too.
    reads_hidden: bool,
    pattern: Box<[u8]>,
    /// For each length matched, the longest shorter one that is matched too.
    shorter: Box<[usize]>,
    /// Bytes of the pattern that the text so far ends with.
    state: usize,
}

impl Matcher {
    fn new(index: usize, pattern: &str) -> Self {
        let pattern: Box<[u8]> = pattern.bytes().collect();
        let mut shorter = vec![0; pattern.len() + 1].into_boxed_slice();
        let mut len = 0;
        for i in 1..pattern.len() {
            while len > 0 && pattern[len] != pattern[i] {
                len = shorter[len];
            }
            if pattern[len] == pattern[i] {
                len += 1;
            }
            shorter[i + 1] = len;
        }
        Self {
            index,
            reads_hidden: false,
            pattern,
            shorter,
            state: 0,
        }
    }

    /// Reads one more byte; true when the text now ends with the pattern.
    fn step(&mut self, byte: u8) -> bool {
        while self.state > 0 && self.pattern.get(self.state) != Some(&byte) {
            self.state = self.shorter[self.state];
        }
        if self.pattern.get(self.state) == Some(&byte) {
            self.state += 1;
        }
        self.state == self.pattern.len()
    }
}

impl StopChecker {
    /// Looks for `stops`, none of which is empty. With `include` the text of a choice ends with
    /// the match, without it before.
    pub fn new(stops: &[String], include: bool) -> Self {
        Self::with_hidden(stops, include, |_| false)
    }

    /// [`Self::new`], and looks for the stop strings that `reads_hidden` picks in the text with
    /// [hidden](Self::push_hidden) text too.
    pub fn with_hidden(
        stops: &[String],
        include: bool,
        reads_hidden: impl Fn(&str) -> bool,
    ) -> Self {
        let plain = stops.iter().enumerate();
        let both = plain.clone().filter(|(_, stop)| reads_hidden(stop));
        let both = both.map(|(index, stop)| Matcher {
            reads_hidden: true,
            ..Matcher::new(index, stop)
        });
        let plain = plain.map(|(index, stop)| Matcher::new(index, stop));
        Self {
            stops: plain.chain(both).collect(),
            include,
            held: String::new(),
            hidden: Vec::new(),
            matched: false,
        }
    }

    /// Whether hidden text can be part of a match.
    pub fn reads_hidden(&self) -> bool {
        self.stops.iter().any(|stop| stop.reads_hidden)
    }

    /// Reads the next piece of text and appends to `out` what is certain to be part of the
    /// choice. After a match there is no more text.
    ///
    /// With `armed` false (before `min_tokens`) a stop string that ends in this piece is text
    /// like any other; one that begins in it and ends in a later, armed piece is found.
    pub fn push(&mut self, piece: &str, armed: bool, out: &mut String) -> Option<StopMatch> {
        if self.matched {
            return None;
        }
        if self.stops.is_empty() {
            out.push_str(piece);
            return None;
        }
        self.read(piece, false, armed, out)
    }

    /// Reads text that is not part of the choice's own, such as a special token's, at this place
    /// of it. It is never appended to `out`.
    pub fn push_hidden(&mut self, piece: &str, armed: bool, out: &mut String) -> Option<StopMatch> {
        if self.matched || !self.reads_hidden() {
            return None;
        }
        let start = self.held.len();
        self.hidden.push(start..start + piece.len());
        self.read(piece, true, armed, out)
    }

    fn read(
        &mut self,
        piece: &str,
        is_hidden: bool,
        armed: bool,
        out: &mut String,
    ) -> Option<StopMatch> {
        let start = self.held.len();
        self.held.push_str(piece);
        for (i, byte) in piece.bytes().enumerate() {
            let end = start + i + 1;
            // Index of a stop string, and where in `held` it begins.
            let mut found: Option<(usize, usize)> = None;
            for stop in &mut self.stops {
                if (stop.reads_hidden || !is_hidden) && stop.step(byte) {
                    let begin = begin(&self.hidden, stop, stop.pattern.len(), end);
                    if found.is_none_or(|(_, first)| begin < first) {
                        found = Some((stop.index, begin));
                    }
                }
            }
            if let Some((index, begin)) = found.filter(|_| armed) {
                self.matched = true;
                self.hand_out(if self.include { end } else { begin }, out);
                self.held.clear();
                return Some(StopMatch { index });
            }
        }
        // A beginning of a stop string is whole characters as long as the text is, so this cuts
        // between characters. A whole one can only stand here unarmed, and is not a beginning.
        let end = self.held.len();
        let begins = self.stops.iter();
        let begins = begins.map(|stop| begin(&self.hidden, stop, stop.beginning(), end));
        self.hand_out(begins.min().unwrap_or(end), out);
        None
    }

    /// Moves what is visible of the first `cut` bytes to `out`.
    fn hand_out(&mut self, cut: usize, out: &mut String) {
        let mut from = 0;
        for hidden in &self.hidden {
            out.push_str(&self.held[from.min(cut)..hidden.start.min(cut)]);
            from = hidden.end;
        }
        out.push_str(&self.held[from.min(cut)..cut]);
        self.held.drain(..cut);
        self.hidden.retain_mut(|range| {
            *range = range.start.saturating_sub(cut)..range.end.saturating_sub(cut);
            range.start < range.end
        });
    }

    /// Appends what was held back: the choice ended otherwise.
    pub fn finish(&mut self, out: &mut String) {
        self.hand_out(self.held.len(), out);
    }
}

/// Where the last `len` bytes that `stop` has read of a text begin, which ends at `end`.
fn begin(hidden: &[Range<usize>], stop: &Matcher, len: usize, end: usize) -> usize {
    let mut begin = end.saturating_sub(len);
    if stop.reads_hidden {
        return begin;
    }
    for range in hidden.iter().rev() {
        if range.end <= begin {
            break;
        }
        // None of these has been read.
        begin = begin.saturating_sub(range.len());
    }
    begin
}

impl Matcher {
    /// Bytes at the end of the text that may still become a match.
    fn beginning(&self) -> usize {
        if self.state == self.pattern.len() {
            self.shorter[self.state]
        } else {
            self.state
        }
    }
}
