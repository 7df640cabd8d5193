//! Finds stop strings in text that arrives in pieces.
//!
//! Text that may still turn out to be the beginning of a stop string is held back. Where it ends
//! is a function of the whole text, not of the pieces: the match that ends first, and of those
//! that end together the longest.

/// The stop strings of one request, at some point of one choice's text.
#[derive(Clone, Debug, Default)]
pub struct StopChecker {
    stops: Vec<Matcher>,
    /// The matched stop string stays in the text.
    include: bool,
    /// Text not handed out yet.
    held: String,
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
    pattern: Box<[u8]>,
    /// For each length matched, the longest shorter one that is matched too.
    shorter: Box<[usize]>,
    /// Bytes of the pattern that the text so far ends with.
    state: usize,
}

impl Matcher {
    fn new(pattern: &str) -> Self {
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
        Self {
            stops: stops.iter().map(|stop| Matcher::new(stop)).collect(),
            include,
            held: String::new(),
            matched: false,
        }
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
        let start = self.held.len();
        self.held.push_str(piece);
        for (i, byte) in piece.bytes().enumerate() {
            let mut found: Option<(usize, usize)> = None;
            for (index, stop) in self.stops.iter_mut().enumerate() {
                let len = stop.pattern.len();
                if stop.step(byte) && found.is_none_or(|(_, longest)| len > longest) {
                    found = Some((index, len));
                }
            }
            if let Some((index, len)) = found.filter(|_| armed) {
                self.matched = true;
                let end = start + i + 1;
                let cut = if self.include { end } else { end - len };
                out.push_str(&self.held[..cut]);
                self.held.clear();
                return Some(StopMatch { index });
            }
        }
        // A beginning of a stop string is whole characters as long as the text is, so this cuts
        // between characters. A whole one can only stand here unarmed, and is not a beginning.
        let longest = self.stops.iter().map(Matcher::beginning).max();
        let cut = self.held.len() - longest.unwrap_or(0);
        out.push_str(&self.held[..cut]);
        self.held.drain(..cut);
        None
    }

    /// Appends what was held back: the choice ended otherwise.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }
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
