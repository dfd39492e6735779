-------------------------------- MODULE Park --------------------------------
(***************************************************************************)
(* Parking: messages that wait in the queue of a lock as data on the lock  *)
(* server, workers and pollers that die at any point, a broker that        *)
(* delivers again what is not acknowledged, retries.                       *)
(*                                                                         *)
(* Leases and deadlines are in Lock.tla: here a run holds the lock until   *)
(* it is released, or until its worker has died and the lease has lapsed.  *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
  Jobs, Workers, Pollers,
  Attempts,      \* attempts of a job: every attempt but the last one may retry
  Entries,       \* how many messages the broker has room for
  Deaths, PollerDeaths, Redeliveries,  \* how often each may happen
  Lapses,        \* how often the slot of a woken message lapses or is released by force
  DataLosses,    \* how often the lock server loses its data
  SlowPolls,     \* how often a poller takes longer than its turn
  ConfirmBy,     \* "token", or "wake": the number of the wake-up that was published
  Reparking,     \* a stored message of the same job: the "last" one stays, or the one of the "later" attempt
  TakeoverFrom,  \* "any" earlier attempt, or only the one that has "published" the retry
  Mutation       \* "none", or the mistake of a negative control

VARIABLES
  holder,   \* of the lock: [kind, job, attempt, worker]; kind "free", "kept" (a woken message), "run"
  queue,    \* parked jobs in order (the token is 'k' and the task id)
  parked,   \* job -> the attempt of its stored message; 0: none
  due,      \* job -> "no", "now", "taken" (a poller has its turn)
  wake,     \* job -> how often it was woken
  ended,    \* job -> the mark e:<job>
  published,  \* job -> the latest attempt that was ever published
  entries,  \* the broker: number -> [at, job, attempt]; at "free", "ready", "out"
  worker,   \* worker -> [st, entry, job, attempt]
  poller,   \* poller -> [st, job, attempt, wake]
  left      \* how often each fault may still happen

vars == <<holder, queue, parked, due, wake, ended, published, entries, worker, poller, left>>

Range(s) == {s[i] : i \in DOMAIN s}
Free == [kind |-> "free", job |-> "", attempt |-> 0, worker |-> ""]
NoEntry == [at |-> "free", job |-> "", attempt |-> 0]
Idle == [st |-> "idle", entry |-> 0, job |-> "", attempt |-> 0]
IdlePoller == [st |-> "idle", job |-> "", attempt |-> 0, wake |-> 0]
JobNumber(j) == CHOOSE i \in 1..Cardinality(Jobs) : j = <<"a", "b", "c">>[i]

Init ==
  /\ holder = Free
  /\ queue = <<>>
  /\ parked = [j \in Jobs |-> 0]
  /\ due = [j \in Jobs |-> "no"]
  /\ wake = [j \in Jobs |-> 0]
  /\ ended = [j \in Jobs |-> 0]
  /\ published = [j \in Jobs |-> 1]
  /\ entries = [i \in 1..Entries |->
       IF \E j \in Jobs : JobNumber(j) = i
       THEN [at |-> "ready", job |-> CHOOSE j \in Jobs : JobNumber(j) = i, attempt |-> 1]
       ELSE NoEntry]
  /\ worker = [w \in Workers |-> Idle]
  /\ poller = [p \in Pollers |-> IdlePoller]
  /\ left = [deaths |-> Deaths, pollerDeaths |-> PollerDeaths, redeliveries |-> Redeliveries,
             lapses |-> Lapses, slow |-> SlowPolls,
             dataLosses |-> DataLosses]

-----------------------------------------------------------------------------
(* The lock server.                                                         *)

\* Hand-over of the slot that `freed` leaves: the first parked message gets it and is due.
PassOn(freed) ==
  IF freed.kind = "free" /\ queue # <<>>
  THEN LET j == Head(queue) IN
       /\ holder' = [kind |-> "kept", job |-> j, attempt |-> 0, worker |-> ""]
       /\ queue' = Tail(queue)
       /\ due' = [due EXCEPT ![j] = "now"]
       /\ wake' = [wake EXCEPT ![j] = @ + 1]
  ELSE /\ holder' = freed
       /\ UNCHANGED <<queue, due, wake>>

\* acquire with the option park. Acknowledging comes after the reply (Ack).
AcquireOrPark(w) ==
  /\ worker[w].st = "received"
  /\ LET j == worker[w].job
         attempt == worker[w].attempt
         becomes(st) == worker' = [worker EXCEPT ![w].st = st]
         isSameJob == holder.kind # "free" /\ holder.job = j
         hasStopped == holder.kind = "run"
                       => holder.worker # w /\ worker[holder.worker].st # "running"
         isEarlier == /\ isSameJob /\ holder.attempt < attempt
                      /\ TakeoverFrom = "published" => hasStopped
     IN IF ended[j] >= attempt
        THEN becomes("acking") /\ UNCHANGED <<holder, queue, parked, due>>
        ELSE IF (holder.kind = "free" /\ queue = <<>>) \/ isEarlier
        THEN /\ holder' = [kind |-> "run", job |-> j, attempt |-> attempt, worker |-> w]
             /\ becomes("running")
             /\ UNCHANGED <<queue, parked, due>>
        ELSE IF isSameJob
        THEN /\ becomes(IF Mutation = "copy_skipped" THEN "acking" ELSE "putting_back")
             /\ UNCHANGED <<holder, queue, parked, due>>
        ELSE /\ queue' = IF j \in Range(queue) THEN queue ELSE Append(queue, j)
             /\ parked' = [parked EXCEPT ![j] =
                  IF Reparking = "later" /\ @ > attempt THEN @ ELSE attempt]
             /\ due' = IF ConfirmBy = "wake" THEN [due EXCEPT ![j] = "no"] ELSE due
             /\ becomes("acking")
             /\ UNCHANGED holder
  /\ UNCHANGED <<published, wake, ended, entries, poller, left>>

IsHolder(w) ==
  holder.kind = "run" /\ holder.worker = w /\ holder.job = worker[w].job
  /\ holder.attempt = worker[w].attempt

\* release with the mark of the attempt that ended.
Release(w) ==
  /\ worker[w].st = "releasing"
  /\ ended' = [ended EXCEPT ![worker[w].job] = IF @ > worker[w].attempt THEN @ ELSE worker[w].attempt]
  /\ PassOn(IF IsHolder(w) THEN Free ELSE holder)
  /\ worker' = [worker EXCEPT ![w].st = "acking"]
  /\ UNCHANGED <<published, parked, entries, poller, left>>

\* The lease of a dead worker lapses, and a poll (the entry 'n<name>' of due) notices it.
LapseOfRun ==
  /\ holder.kind = "run"
  /\ LET w == worker[holder.worker] IN
     ~(w.st \in {"running", "releasing"} /\ IsHolder(holder.worker))
  /\ PassOn(Free)
  /\ UNCHANGED <<published, parked, ended, entries, worker, poller, left>>

\* The slot of a woken message lapses before its run, or an operator releases it.
LapseOfKept ==
  /\ holder.kind = "kept" /\ left.lapses > 0
  /\ left' = [left EXCEPT !.lapses = @ - 1]
  /\ PassOn(Free)
  /\ UNCHANGED <<published, parked, ended, entries, worker, poller>>

\* What is parked is data on the lock server, and is lost with it.
LoseData ==
  /\ left.dataLosses > 0
  /\ left' = [left EXCEPT !.dataLosses = @ - 1]
  /\ holder' = Free
  /\ queue' = <<>>
  /\ parked' = [j \in Jobs |-> 0]
  /\ due' = [j \in Jobs |-> "no"]
  /\ ended' = [j \in Jobs |-> 0]
  /\ UNCHANGED <<published, wake, entries, worker, poller>>

\* poll_due: a poller gets the message and its turn to publish it.
PollDue(p, j) ==
  /\ poller[p].st = "idle" /\ due[j] = "now" /\ parked[j] > 0
  /\ poller' = [poller EXCEPT ![p] =
       [st |-> "publishing", job |-> j, attempt |-> parked[j], wake |-> wake[j]]]
  /\ IF Mutation = "wake_once"
     THEN due' = [due EXCEPT ![j] = "no"] /\ parked' = [parked EXCEPT ![j] = 0]
     ELSE due' = [due EXCEPT ![j] = "taken"] /\ UNCHANGED parked
  /\ UNCHANGED <<published, holder, queue, wake, ended, entries, worker, left>>

IsPolled(j) == \E p \in Pollers : poller[p].st # "idle" /\ poller[p].job = j

\* The turn of a poller ends, and the message is due again: it died, or it is slow.
TurnEnds(j) ==
  /\ due[j] = "taken" /\ ~IsPolled(j)
  /\ due' = [due EXCEPT ![j] = "now"]
  /\ UNCHANGED <<published, holder, queue, parked, wake, ended, entries, worker, poller, left>>

TurnEndsEarly(j) ==
  /\ due[j] = "taken" /\ IsPolled(j) /\ left.slow > 0
  /\ left' = [left EXCEPT !.slow = @ - 1]
  /\ due' = [due EXCEPT ![j] = "now"]
  /\ UNCHANGED <<published, holder, queue, parked, wake, ended, entries, worker, poller>>

\* confirm_wake: the message is published; its entries are removed.
ConfirmWake(p) ==
  /\ poller[p].st = "confirming"
  /\ LET j == poller[p].job
         isCurrent == ConfirmBy = "token" \/ (wake[j] = poller[p].wake /\ due[j] # "no")
     IN /\ due' = IF isCurrent THEN [due EXCEPT ![j] = "no"] ELSE due
        /\ parked' = IF isCurrent THEN [parked EXCEPT ![j] = 0] ELSE parked
  /\ poller' = [poller EXCEPT ![p] = IdlePoller]
  /\ UNCHANGED <<published, holder, queue, wake, ended, entries, worker, left>>

-----------------------------------------------------------------------------
(* The broker, workers and pollers.                                         *)

FreeEntries == {i \in 1..Entries : entries[i].at = "free"}
Publish(j, attempt) ==
  LET i == CHOOSE i \in FreeEntries : \A k \in FreeEntries : i <= k
  IN entries' = [entries EXCEPT ![i] = [at |-> "ready", job |-> j, attempt |-> attempt]]

PublishWoken(p) ==
  /\ poller[p].st = "publishing" /\ FreeEntries # {}
  /\ Publish(poller[p].job, poller[p].attempt)
  /\ poller' = [poller EXCEPT ![p].st = "confirming"]
  /\ UNCHANGED <<published, holder, queue, parked, due, wake, ended, worker, left>>

Receive(w, i) ==
  /\ worker[w].st = "idle" /\ entries[i].at = "ready"
  /\ entries' = [entries EXCEPT ![i].at = "out"]
  /\ worker' = [worker EXCEPT ![w] = [st |-> "received", entry |-> i,
                                      job |-> entries[i].job, attempt |-> entries[i].attempt]]
  /\ UNCHANGED <<published, holder, queue, parked, due, wake, ended, poller, left>>

\* The broker delivers a message again although its worker is alive.
Redeliver(i) ==
  /\ entries[i].at = "out" /\ left.redeliveries > 0
  /\ left' = [left EXCEPT !.redeliveries = @ - 1]
  /\ entries' = [entries EXCEPT ![i].at = "ready"]
  /\ UNCHANGED <<published, holder, queue, parked, due, wake, ended, worker, poller>>

\* An acknowledgement removes the message for all who have it.
Ack(w) ==
  /\ worker[w].st = "acking"
  /\ entries' = IF worker[w].entry > 0 THEN [entries EXCEPT ![worker[w].entry] = NoEntry] ELSE entries
  /\ worker' = [v \in Workers |->
       IF v = w THEN Idle
       ELSE IF worker[v].entry = worker[w].entry THEN [worker[v] EXCEPT !.entry = 0] ELSE worker[v]]
  /\ UNCHANGED <<published, holder, queue, parked, due, wake, ended, poller, left>>

PutBack(w) ==
  /\ worker[w].st = "putting_back"
  /\ holder.job # worker[w].job \/ holder.kind # "run"  \* it comes back later
  /\ entries' = IF worker[w].entry > 0 THEN [entries EXCEPT ![worker[w].entry].at = "ready"] ELSE entries
  /\ worker' = [worker EXCEPT ![w] = Idle]
  /\ UNCHANGED <<published, holder, queue, parked, due, wake, ended, poller, left>>

Finish(w) ==
  /\ worker[w].st = "running"
  /\ worker' = [worker EXCEPT ![w].st = "releasing"]
  /\ UNCHANGED <<published, holder, queue, parked, due, wake, ended, entries, poller, left>>

\* retry publishes the next attempt, then the run ends.
Retry(w) ==
  /\ worker[w].st = "running" /\ worker[w].attempt < Attempts /\ FreeEntries # {}
  /\ Publish(worker[w].job, worker[w].attempt + 1)
  /\ published' = [published EXCEPT ![worker[w].job] =
       IF @ > worker[w].attempt THEN @ ELSE worker[w].attempt + 1]
  /\ worker' = [worker EXCEPT ![w].st = "releasing"]
  /\ UNCHANGED <<holder, queue, parked, due, wake, ended, poller, left>>

\* The broker gets back what a dead worker had, unless somebody else has acknowledged it.
Die(w) ==
  /\ worker[w].st # "idle" /\ left.deaths > 0
  /\ left' = [left EXCEPT !.deaths = @ - 1]
  /\ entries' = IF worker[w].entry > 0 THEN [entries EXCEPT ![worker[w].entry].at = "ready"] ELSE entries
  /\ worker' = [worker EXCEPT ![w] = Idle]
  /\ UNCHANGED <<published, holder, queue, parked, due, wake, ended, poller>>

PollerDies(p) ==
  /\ poller[p].st # "idle" /\ left.pollerDeaths > 0
  /\ left' = [left EXCEPT !.pollerDeaths = @ - 1]
  /\ poller' = [poller EXCEPT ![p] = IdlePoller]
  /\ UNCHANGED <<published, holder, queue, parked, due, wake, ended, entries, worker>>

WorkerStep(w) ==
  \/ \E i \in 1..Entries : Receive(w, i)
  \/ AcquireOrPark(w) \/ Release(w) \/ Ack(w) \/ PutBack(w) \/ Finish(w)

PollerStep(p) ==
  \/ \E j \in Jobs : PollDue(p, j)
  \/ PublishWoken(p) \/ ConfirmWake(p)

Next ==
  \/ \E w \in Workers : WorkerStep(w) \/ Retry(w) \/ Die(w)
  \/ \E p \in Pollers : PollerStep(p) \/ PollerDies(p)
  \/ \E j \in Jobs : TurnEnds(j) \/ TurnEndsEarly(j)
  \/ \E i \in 1..Entries : Redeliver(i)
  \/ LapseOfRun \/ LapseOfKept \/ LoseData

Spec == Init /\ [][Next]_vars

FairSpec ==
  /\ Spec
  /\ \A w \in Workers : WF_vars(WorkerStep(w))
  /\ \A p \in Pollers : WF_vars(PollerStep(p))
  /\ WF_vars(\E j \in Jobs : TurnEnds(j))
  /\ WF_vars(LapseOfRun)

-----------------------------------------------------------------------------
(* What is promised.                                                        *)

Running == {w \in Workers : worker[w].st = "running"}

\* One job at most runs under the lock, a woken or redelivered copy never beside the original.
OneRunsAtOnce == Cardinality(Running) <= 1

\* An attempt that is not ended is in the broker, at a worker, or parked and to be woken.
HasMessage(j) ==
  \/ \E i \in 1..Entries :
       entries[i].at # "free" /\ entries[i].job = j /\ entries[i].attempt > ended[j]
  \/ parked[j] > ended[j] /\ (j \in Range(queue) \/ due[j] # "no")
IsAtWork(j) ==  \* the message was acknowledged through a copy, but the run goes on
  \E w \in Workers : worker[w].st \in {"running", "releasing"} /\ worker[w].job = j
NoJobIsLost == \A j \in Jobs : ended[j] >= published[j] \/ HasMessage(j) \/ IsAtWork(j)

\* Every job ends: whoever is parked is woken, if runs end and one worker and one poller live.
EveryJobEnds == \A j \in Jobs : <>(ended[j] >= published[j] /\ queue = <<>>)
=============================================================================
