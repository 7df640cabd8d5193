//! Lists, what is gone through once, and ranges.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use super::super::budget::{self, Charge};
use super::super::fail::Res;
use super::{OBJECT_BYTES, Value, depth_above};

/// Bytes that an element takes in its list.
const ELEMENT_BYTES: usize = 48;

pub(in super::super) struct Seq {
    pub(in super::super) items: Vec<Value>,
    pub(super) depth: usize,
    /// Whether it is a group of `groupby`, whose parts have names.
    pub(in super::super) is_group: bool,
    _charge: Charge,
}

pub(in super::super) struct Iter {
    pub(super) left: RefCell<VecDeque<Value>>,
    pub(super) depth: usize,
    _charge: Charge,
}

pub(in super::super) struct Range {
    pub(in super::super) start: i128,
    pub(in super::super) step: i128,
    pub(in super::super) len: usize,
    /// As it is written.
    pub(in super::super) stop: i128,
    _charge: Charge,
}

impl Seq {
    pub(in super::super) fn new(items: Vec<Value>) -> Res<Rc<Self>> {
        Self::make(items, false)
    }

    pub(in super::super) fn make(items: Vec<Value>, is_group: bool) -> Res<Rc<Self>> {
        budget::steps(items.len() / 4)?;
        let depth = depth_above(items.iter())?;
        let _charge = Charge::new(ELEMENT_BYTES * (items.len() + 2))?;
        Ok(Rc::new(Self {
            items,
            depth,
            is_group,
            _charge,
        }))
    }
}

impl Iter {
    pub(in super::super) fn next(&self) -> Option<Value> {
        self.left.borrow_mut().pop_front()
    }
}

impl Range {
    /// Its last element must be a whole number of ours.
    pub(in super::super) fn value(start: i128, step: i128, len: usize, stop: i128) -> Res<Value> {
        Ok(Value::Range(Rc::new(Self {
            start,
            step,
            len,
            stop,
            _charge: Charge::new(OBJECT_BYTES)?,
        })))
    }

    pub(in super::super) fn get(&self, at: usize) -> Value {
        let offset = self.step.saturating_mul(at as i128);
        Value::Int(self.start.saturating_add(offset))
    }
}

impl Value {
    pub(in super::super) fn list(items: Vec<Self>) -> Res<Self> {
        Ok(Self::List(Seq::new(items)?))
    }

    pub(in super::super) fn tuple(items: Vec<Self>) -> Res<Self> {
        Ok(Self::Tuple(Seq::new(items)?))
    }

    pub(in super::super) fn iterator(items: Vec<Self>) -> Res<Self> {
        budget::steps(items.len() / 4)?;
        Ok(Self::Iterator(Rc::new(Iter {
            depth: depth_above(items.iter())?,
            _charge: Charge::new(ELEMENT_BYTES * (items.len() + 2))?,
            left: RefCell::new(items.into()),
        })))
    }
}
