//! When what was written counts as a wish, and what has become of it.

use std::time::Duration;

use ib_wire::{Attribute, Mad, Method};

use crate::judge::{Judgement, Tables, judge};
use crate::verdict::{Adaptation, Judged, Refusal, Status, Unshared, Verdict};
use crate::view::View;
use crate::wish::WishChange;

/// A change set closes when nothing was written for so long: managers write in one go.
const QUIET: Duration = Duration::from_millis(500);
/// What does not hold together after so long is refused.
const PATIENCE: Duration = Duration::from_secs(30);

/// The wishes of a view. One waits to be taken at most: a newer one takes the place of an older.
#[derive(Debug, Default)]
pub(crate) struct Wishes {
    open: Option<ChangeSet>,
    /// Whether tables of lanes or weights were written since the default was installed.
    has_classes: bool,
    unshared: Unshared,
    numbers_given: u64,
    last: Option<Judged>,
    in_force: Option<u64>,
    /// The number under which wishes were last withdrawn.
    withdrawn: Option<u64>,
    waiting: Option<WishChange>,
}

#[derive(Clone, Copy, Debug)]
struct ChangeSet {
    opened: Duration,
    last_write: Duration,
    /// It was looked at since the last write, and did not hold together.
    is_judged: bool,
}

impl Wishes {
    /// Notes what a datagram writes, if that can be part of a wish.
    pub fn note(&mut self, now: Duration, mad: &Mad) {
        if !mad.class().is_subnet_management() || mad.method() != Method::SET {
            return;
        }
        match mad.attribute() {
            Attribute::SL_TO_VL | Attribute::VL_ARBITRATION => self.has_classes = true,
            Attribute::LINEAR_FORWARDING
            | Attribute::PKEY_TABLE
            | Attribute::PORT_INFO
            | Attribute::SWITCH_INFO => {}
            _ => return,
        }
        self.touch(now);
    }

    /// Something has changed that wishes depend on.
    pub fn touch(&mut self, now: Duration) {
        let opened = self.open.map_or(now, |set| set.opened);
        self.open = Some(ChangeSet { opened, last_write: now, is_judged: false });
    }

    /// The default is in the tables again: nobody wishes anything.
    pub fn withdraw(&mut self) {
        (self.open, self.has_classes) = (None, false);
        let is_known = self.last.take().is_some() || self.in_force.is_some() || self.waiting.is_some();
        if is_known {
            self.numbers_given += 1;
            self.withdrawn = Some(self.numbers_given);
            self.waiting = Some(WishChange::Withdrawn { number: self.numbers_given });
        }
    }

    pub fn poll_timeout(&self) -> Option<Duration> {
        let set = self.open?;
        let patience = set.opened + PATIENCE;
        Some(if set.is_judged { patience } else { patience.min(set.last_write + QUIET) })
    }

    /// Takes what was found; whether it is for good.
    fn conclude(&mut self, judgement: Judgement, is_final: bool) {
        let Judgement { wish, outcome } = judgement;
        let (verdict, physical, all_to_all) = match outcome {
            Err(_) if !is_final => {
                if let Some(set) = &mut self.open {
                    set.is_judged = true;
                }
                return;
            }
            Err(refusal) => (Verdict::Refused { refusal }, None, None),
            Ok(granted) => {
                let verdict = match granted.adaptations.is_empty() {
                    true => Verdict::Approved,
                    false => Verdict::Adapted { adaptations: granted.adaptations },
                };
                (verdict, Some(granted.physical), granted.all_to_all)
            }
        };
        self.open = None;
        let number = self.numbers_given + 1;
        let judged = Judged { number, wish, verdict, all_to_all };
        let is_news =
            self.last.as_ref().is_none_or(|last| *last != Judged { number: last.number, ..judged.clone() });
        if is_news {
            self.numbers_given = number;
            self.last = Some(judged);
            if let Some(physical) = physical {
                self.waiting = Some(WishChange::Wished { number, wish: Box::new(physical) });
            }
        }
    }
}

impl View {
    /// Closes the change set that is open, whatever it is. Returns what was said last, if anything.
    pub fn commit(&mut self, now: Duration) -> Option<&Judged> {
        self.now = self.now.max(now);
        if self.wishes.open.is_some() {
            let judgement = judge(self.tables());
            self.wishes.conclude(judgement, true);
        }
        self.wishes.last.as_ref()
    }

    /// Says what becomes of wishes whose routes take links without a share. By default they are refused.
    pub fn set_unshared(&mut self, unshared: Unshared) {
        self.wishes.unshared = unshared;
    }

    /// The next change of what is wished. Of several that were not taken, the last.
    pub fn poll_wish(&mut self) -> Option<WishChange> {
        self.wishes.waiting.take()
    }

    /// The physical network is as a wish asks, or as by default if it was withdrawn under this number.
    pub fn put_in_force(&mut self, number: u64) {
        self.wishes.in_force = (self.wishes.withdrawn != Some(number)).then_some(number);
    }

    /// A wish that seemed possible is not: the physical network could not be planned so. What was in force stays.
    pub fn refuse(&mut self, number: u64, reason: String) {
        if let Some(judged) = self.wishes.last.as_mut().filter(|judged| judged.number == number) {
            judged.verdict = Verdict::Refused { refusal: Refusal::NotPossible { reason } };
        }
    }

    /// A wish was changed once more so that the physical network can be so.
    pub fn adapt(&mut self, number: u64, adaptation: Adaptation) {
        let Some(judged) = self.wishes.last.as_mut().filter(|judged| judged.number == number) else { return };
        match &mut judged.verdict {
            Verdict::Approved => judged.verdict = Verdict::Adapted { adaptations: vec![adaptation] },
            Verdict::Adapted { adaptations } => adaptations.push(adaptation),
            Verdict::Refused { .. } => {}
        }
    }

    /// What was in force is not any more, for the physical network has changed: what the tables hold is judged anew.
    pub fn judge_again(&mut self, now: Duration) {
        self.now = self.now.max(now);
        if self.wishes.last.take().is_some() {
            self.wishes.in_force = None;
            self.wishes.touch(self.now);
        }
    }

    /// What is going on.
    pub fn status(&self) -> Status {
        Status {
            rule: self.rule(),
            is_open: self.wishes.open.is_some(),
            last: self.wishes.last.clone(),
            in_force: self.wishes.in_force,
        }
    }

    pub(crate) fn close_if_due(&mut self) {
        let Some(set) = self.wishes.open else { return };
        let is_final = self.now >= set.opened + PATIENCE;
        let is_quiet = !set.is_judged && self.now >= set.last_write + QUIET;
        if is_final || is_quiet {
            let judgement = judge(self.tables());
            self.wishes.conclude(judgement, is_final);
        }
    }

    fn tables(&self) -> Tables<'_> {
        Tables {
            fabric: &self.fabric,
            projection: &self.projection,
            slice: &self.slice,
            plan: &self.plan,
            has_classes: self.wishes.has_classes,
            unshared: self.wishes.unshared,
        }
    }
}
