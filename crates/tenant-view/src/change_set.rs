//! Change sets: when writes of the tenant's subnet manager count as an overlay, and what happens to it.
//!
//! A change set opens with the first write and closes [`QUIET_PERIOD`] after the last one, when its overlay is judged. An
//! overlay that would be refused is not refused before [`REFUSAL_DELAY`] has passed since the set was opened, because a
//! manager may still be writing.

use std::time::Duration;

use ib_wire::{Attribute, Mad, Method};

use crate::judge::{JudgeInput, Judgement, judge};
use crate::overlay::OverlayChange;
use crate::verdict::{Adaptation, JudgedOverlay, OverlayRefusal, OverlayStatus, UngrantedRoutes, Verdict};
use crate::view::View;

/// A change set is judged when nothing was written for this long: managers write their tables in one go.
const QUIET_PERIOD: Duration = Duration::from_millis(500);
/// A change set that cannot be applied is refused this long after it was opened.
const REFUSAL_DELAY: Duration = Duration::from_secs(30);

/// The change set and the overlays of a view. At most one overlay waits to be taken; a newer one replaces it.
#[derive(Debug, Default)]
pub(crate) struct OverlayState {
    open: Option<ChangeSet>,
    /// Whether SL-to-VL or arbitration tables were written since the default was installed.
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
    /// It was judged since the last write, and would be refused.
    is_judged: bool,
}

impl OverlayState {
    /// Opens or extends the change set if a datagram writes a table that overlays are read from.
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

    /// Opens or extends the change set, since something changed that overlays depend on.
    pub fn touch(&mut self, now: Duration) {
        let opened = self.open.map_or(now, |set| set.opened);
        self.open = Some(ChangeSet { opened, last_write: now, is_judged: false });
    }

    /// The default is installed again: withdraws the overlay.
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
        let deadline = set.opened + REFUSAL_DELAY;
        Some(if set.is_judged { deadline } else { deadline.min(set.last_write + QUIET_PERIOD) })
    }

    /// Records a verdict. A refusal that is not final leaves the change set open.
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
                let verdict = if granted.adaptations.is_empty() {
                    Verdict::Approved
                } else {
                    Verdict::Adapted { adaptations: granted.adaptations }
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
    /// Closes the open change set with a final verdict. Returns the last overlay with its verdict, if there is one.
    pub fn commit(&mut self, now: Duration) -> Option<&JudgedOverlay> {
        self.now = self.now.max(now);
        if self.overlays.open.is_some() {
            let judgement = judge(self.judge_input());
            self.overlays.conclude(judgement, true);
        }
        self.overlays.last.as_ref()
    }

    /// Sets what happens to overlays whose routes use links on which the cluster is granted nothing;
    /// [`UngrantedRoutes::Refuse`] by default. Applies from the next verdict on.
    pub fn set_ungranted_routes(&mut self, ungranted_routes: UngrantedRoutes) {
        self.overlays.ungranted_routes = ungranted_routes;
    }

    /// Takes the pending change of the overlay. Of several changes since the last call, only the last is returned.
    pub fn poll_overlay(&mut self) -> Option<OverlayChange> {
        self.overlays.waiting.take()
    }

    /// Reports that the physical network implements overlay `number`, or the default if `number` is that of a
    /// withdrawal.
    pub fn put_in_force(&mut self, number: u64) {
        self.overlays.in_force = (self.overlays.withdrawn != Some(number)).then_some(number);
    }

    /// Reports that the physical network could not be planned with overlay `number`. What was in force stays in
    /// force. Ignored if `number` is not the last overlay.
    pub fn refuse(&mut self, number: u64, reason: String) {
        if let Some(judged) = self.overlays.last.as_mut().filter(|judged| judged.number == number) {
            judged.verdict = Verdict::Refused { refusal: OverlayRefusal::NotPlannable { reason } };
        }
    }

    /// Reports that overlay `number` was changed further to fit the physical network. Ignored if `number` is not the
    /// last overlay or was refused.
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

    /// Reports that the overlay in force no longer is, because the physical network changed: judges the tables anew
    /// after half a second without writes.
    pub fn judge_again(&mut self, now: Duration) {
        self.now = self.now.max(now);
        if self.overlays.last.take().is_some() {
            self.overlays.in_force = None;
            self.overlays.touch(self.now);
        }
    }

    pub fn status(&self) -> OverlayStatus {
        OverlayStatus {
            managed_by: self.managed_by(),
            is_open: self.overlays.open.is_some(),
            last: self.overlays.last.clone(),
            in_force: self.overlays.in_force,
        }
    }

    pub(crate) fn close_if_due(&mut self) {
        let Some(set) = self.overlays.open else { return };
        let is_final = self.now >= set.opened + REFUSAL_DELAY;
        let is_quiet = !set.is_judged && self.now >= set.last_write + QUIET_PERIOD;
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
