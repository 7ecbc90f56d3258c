//! A VM and its volumes as mClock's product mode keeps them: what one dispatch needs of them, close together.

use crate::few::Few;
use crate::policy::Policy;
use crate::request::{RequestId, VolumeId};
use crate::scheduler::Facts;
use crate::slots::{Arena, Fifo};
use crate::tag::{ShareTag, Tag};

use super::account::Account;
use super::product::VIRTUAL_START;

/// What a dispatch needs comes first, in as few cache lines as it fits: with many VMs each of them is fetched anew.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Owner {
    pub(super) account: Account,
    pub(super) queued: u32,
    pub(super) generation: u32,
    /// The earliest arrival among its queue heads, if it has requests.
    pub(super) head: RequestId,
    /// When its limit last let it pass again; before that it waited for its own limit.
    pub(super) released: Tag,
    /// Until when it is held by its limit, and so in no line.
    pub(super) held_until: Option<Tag>,
    pub(super) volumes: Few<Volume>,
    /// Virtual time among its volumes.
    pub(super) inner_time: ShareTag,
    pub(super) policy: Box<Policy>,
}

#[derive(Debug)]
pub(super) struct Volume {
    pub(super) fifo: Fifo,
    pub(super) id: VolumeId,
    /// Absent for the only volume of a VM without a policy of its own: nothing to choose, nothing to check.
    pub(super) account: Option<Box<Account>>,
    /// Until when its own limit holds its head.
    pub(super) held_until: Option<Tag>,
    pub(super) policy: Box<Policy>,
}

impl Owner {
    /// Finds the earliest arrival among its queue heads; returns when its own limit passes and at least one such volume
    /// may go.
    ///
    /// The arrival breaks ties between VMs, so it must not depend on which volumes may go: that changes as time passes,
    /// and a place in line does not.
    #[inline]
    pub(super) fn find_head(&mut self, arena: &Arena) -> Tag {
        if let Some(Volume { fifo, account: None, .. }) = self.volumes.only() {
            self.head = arena.front(fifo).expect("a backlogged owner has a head").id;
            return self.account.passes();
        }
        let heads = self.volumes.iter().filter_map(|volume| {
            let may_go = volume.account.as_ref().map_or(0, |account| account.may_go());
            Some((arena.front(&volume.fifo)?.id, may_go))
        });
        let earliest = heads.reduce(|a, b| (a.0.min(b.0), a.1.min(b.1)));
        let (head, may_go) = earliest.expect("a backlogged owner has a head");
        self.head = head;
        self.account.passes().max(may_go)
    }

    /// The volumes whose own limit lets them pass by now; as with VMs, they banked nothing while it held them.
    pub(super) fn release_volumes(&mut self, arena: &Arena, now: Tag) {
        if self.volumes.only().is_some() {
            return;
        }
        for volume in self.volumes.iter_mut() {
            let Some(account) = &mut volume.account else { continue };
            let held_until = volume.held_until.take();
            if arena.front(&volume.fifo).is_none() {
                continue;
            }
            if account.passes() > now {
                volume.held_until = Some(account.passes());
            } else if let Some(held_until) = held_until {
                account.release(held_until.min(now), self.inner_time);
            }
        }
    }

    /// Gives every volume an account as soon as there is something to choose or to check.
    pub(super) fn open_accounts(&mut self, facts: &Facts, now: Tag) {
        let several = self.volumes.len() > 1;
        for volume in self.volumes.iter_mut() {
            if volume.account.is_none() && (several || *volume.policy != Policy::default()) {
                let account = Account::new(&volume.policy, facts, now, self.inner_time);
                volume.account = Some(Box::new(account));
            }
        }
    }

    pub(super) fn rebase_volumes(&mut self) {
        let by = self.inner_time - VIRTUAL_START;
        self.inner_time = VIRTUAL_START;
        for account in self.volumes.iter_mut().filter_map(|volume| volume.account.as_mut()) {
            account.rebase(by);
        }
    }

    pub(super) fn volume_index(&self, id: VolumeId) -> usize {
        self.volumes.iter().position(|volume| volume.id == id).expect("the gate adds a volume before it uses it")
    }
}
