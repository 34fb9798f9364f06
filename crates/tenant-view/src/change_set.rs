//! When what was written counts as a wish, and what has become of it.

use std::time::Duration;

use ib_wire::{Attribute, Mad, Method};

use crate::judge::{JudgeInput, Judgement, judge};
use crate::overlay::OverlayChange;
use crate::verdict::{Adaptation, JudgedOverlay, OverlayRefusal, UngrantedRoutes, Verdict, ViewStatus};
use crate::view::View;

/// A change set closes when nothing was written for so long: managers write in one go.
const QUIET: Duration = Duration::from_millis(500);
/// What does not hold together after so long is refused.
const PATIENCE: Duration = Duration::from_secs(30);

/// The overlays of a view. One waits to be taken at most: a newer one takes the place of an older.
#[derive(Debug, Default)]
pub(crate) struct OverlayState {
    open: Option<ChangeSet>,
    /// Whether tables of lanes or weights were written since the default was installed.
    has_classes: bool,
    ungranted_routes: UngrantedRoutes,
    numbers_given: u64,
    last: Option<JudgedOverlay>,
    in_force: Option<u64>,
    /// The number under which overlays were last withdrawn.
    withdrawn: Option<u64>,
    waiting: Option<OverlayChange>,
}

#[derive(Clone, Copy, Debug)]
struct ChangeSet {
    opened: Duration,
    last_write: Duration,
    /// It was looked at since the last write, and did not hold together.
    is_judged: bool,
}

impl OverlayState {
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

    /// Something has changed that overlays depend on.
    pub fn touch(&mut self, now: Duration) {
        let opened = self.open.map_or(now, |set| set.opened);
        self.open = Some(ChangeSet { opened, last_write: now, is_judged: false });
    }

    /// The default is in the tables again: nobody overlays anything.
    pub fn withdraw(&mut self) {
        (self.open, self.has_classes) = (None, false);
        let is_known = self.last.take().is_some() || self.in_force.is_some() || self.waiting.is_some();
        if is_known {
            self.numbers_given += 1;
            self.withdrawn = Some(self.numbers_given);
            self.waiting = Some(OverlayChange::Withdrawn { number: self.numbers_given });
        }
    }

    pub fn poll_timeout(&self) -> Option<Duration> {
        let set = self.open?;
        let patience = set.opened + PATIENCE;
        Some(if set.is_judged { patience } else { patience.min(set.last_write + QUIET) })
    }

    /// Takes what was found; whether it is for good.
    fn conclude(&mut self, judgement: Judgement, is_final: bool) {
        let Judgement { overlay, outcome } = judgement;
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
        let judged = JudgedOverlay { number, overlay, verdict, all_to_all };
        let is_news = self
            .last
            .as_ref()
            .is_none_or(|last| *last != JudgedOverlay { number: last.number, ..judged.clone() });
        if is_news {
            self.numbers_given = number;
            self.last = Some(judged);
            if let Some(physical) = physical {
                self.waiting = Some(OverlayChange::Set { number, overlay: Box::new(physical) });
            }
        }
    }
}

impl View {
    /// Closes the change set that is open, whatever it is. Returns what was said last, if anything.
    pub fn commit(&mut self, now: Duration) -> Option<&JudgedOverlay> {
        self.now = self.now.max(now);
        if self.overlays.open.is_some() {
            let judgement = judge(self.judge_input());
            self.overlays.conclude(judgement, true);
        }
        self.overlays.last.as_ref()
    }

    /// Says what becomes of overlays whose routes take links without a share. By default they are refused.
    pub fn set_ungranted_routes(&mut self, ungranted_routes: UngrantedRoutes) {
        self.overlays.ungranted_routes = ungranted_routes;
    }

    /// The next change of what is wished. Of several that were not taken, the last.
    pub fn poll_overlay(&mut self) -> Option<OverlayChange> {
        self.overlays.waiting.take()
    }

    /// The physical network is as a wish asks, or as by default if it was withdrawn under this number.
    pub fn put_in_force(&mut self, number: u64) {
        self.overlays.in_force = (self.overlays.withdrawn != Some(number)).then_some(number);
    }

    /// A wish that seemed possible is not: the physical network could not be planned so. What was in force stays.
    pub fn refuse(&mut self, number: u64, reason: String) {
        if let Some(judged) = self.overlays.last.as_mut().filter(|judged| judged.number == number) {
            judged.verdict = Verdict::Refused { refusal: OverlayRefusal::NotPlannable { reason } };
        }
    }

    /// A wish was changed once more so that the physical network can be so.
    pub fn adapt(&mut self, number: u64, adaptation: Adaptation) {
        let Some(judged) = self.overlays.last.as_mut().filter(|judged| judged.number == number) else {
            return;
        };
        match &mut judged.verdict {
            Verdict::Approved => judged.verdict = Verdict::Adapted { adaptations: vec![adaptation] },
            Verdict::Adapted { adaptations } => adaptations.push(adaptation),
            Verdict::Refused { .. } => {}
        }
    }

    /// What was in force is not any more, for the physical network has changed: what the tables hold is judged anew.
    pub fn judge_again(&mut self, now: Duration) {
        self.now = self.now.max(now);
        if self.overlays.last.take().is_some() {
            self.overlays.in_force = None;
            self.overlays.touch(self.now);
        }
    }

    /// What is going on.
    pub fn status(&self) -> ViewStatus {
        ViewStatus {
            managed_by: self.managed_by(),
            is_open: self.overlays.open.is_some(),
            last: self.overlays.last.clone(),
            in_force: self.overlays.in_force,
        }
    }

    pub(crate) fn close_if_due(&mut self) {
        let Some(set) = self.overlays.open else { return };
        let is_final = self.now >= set.opened + PATIENCE;
        let is_quiet = !set.is_judged && self.now >= set.last_write + QUIET;
        if is_final || is_quiet {
            let judgement = judge(self.judge_input());
            self.overlays.conclude(judgement, is_final);
        }
    }

    fn judge_input(&self) -> JudgeInput<'_> {
        JudgeInput {
            fabric: &self.fabric,
            projection: &self.projection,
            slice: &self.slice,
            plan: &self.plan,
            has_classes: self.overlays.has_classes,
            ungranted_routes: self.overlays.ungranted_routes,
        }
    }
}
