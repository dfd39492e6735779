------------------------------- MODULE Guard --------------------------------
(***************************************************************************)
(* A lock server that loses its data, and the guard that delays grants     *)
(* until the leases from before have ended or are asserted again           *)
(* (lib/guard.lua). One lock, and other locks of its shard in so far as    *)
(* they begin an epoch or move the number. Queue, jobs and limits are not  *)
(* here: Lock.tla has them.                                                *)
(***************************************************************************)
EXTENDS Integers, FiniteSets

CONSTANTS
  Callers,
  Ttl,       \* ticks of a lease
  Steps,     \* how far the clock may go
  Losses,    \* how often the server loses its data
  IsPartial, \* TRUE: it may also lose only the last writes
  HasFresh,  \* TRUE: a process that never got a number may acquire this lock after a loss
  Mutation   \* "none"; "no_guard": a server without its data grants at once;
             \* "reassert_any": a lease is given back whatever the fence says

VARIABLES
  clock,    \* a tick is what the fastest script takes, as in Fence.tla
  srv,      \* what the server holds
  replica,  \* the same of an earlier moment
  pc,       \* caller -> "idle", "holding", "lost"
  deadline, \* caller -> its own deadline
  fence,    \* caller -> the fence of its hold
  known,    \* caller -> the latest number that its process got
  sent,     \* calls that the server may still execute: <<operation, caller, when it was sent>>
  highest,  \* the highest fence that was granted for this lock
  ordered,  \* FALSE once a grant had a lower one
  losses    \* how often the data was lost

vars == <<clock, srv, replica, pc, deadline, fence, known, sent, highest, ordered, losses>>

Max(a, b) == IF a > b THEN a ELSE b

-----------------------------------------------------------------------------
(* Server. `began` is the epoch, 0 for none; `lost`: there was data before. *)

Empty == [holder |-> "nobody", expiry |-> 0, last |-> 0, began |-> 0, lost |-> FALSE]

\* guarded_until: what the number of a caller shows.
NoteLoss(s, number) ==
  IF s.began > 0 /\ ~s.lost /\ number <= s.last /\ (number = 0 \/ number >= s.began) THEN s
  ELSE IF number > s.last THEN [s EXCEPT !.began = clock, !.lost = TRUE, !.last = number]
  ELSE IF ~s.lost /\ number > 0
    THEN [s EXCEPT !.began = IF @ = 0 THEN clock ELSE @, !.lost = TRUE]
  ELSE IF s.began = 0 THEN [s EXCEPT !.began = clock]
  ELSE s

IsGuarded(s) == Mutation # "no_guard" /\ s.lost /\ clock < s.began + Ttl

NextNumber(s) == Max(s.last + 1, clock)

IsFree(s, c) == s.holder \in {"nobody", c} \/ s.expiry <= clock

Acquire(s, c) ==
  LET noted == NoteLoss(s, known[c])
      number == NextNumber(noted)
  IN IF noted.holder = c THEN [s |-> [noted EXCEPT !.expiry = clock + Ttl], reply |-> fence[c]]
     ELSE IF IsGuarded(noted) \/ ~IsFree(noted, c) THEN [s |-> noted, reply |-> 0]
     ELSE [s |-> [noted EXCEPT !.holder = c, !.expiry = clock + Ttl, !.last = number],
           reply |-> number]

Renew(s, c) ==
  IF s.holder = c THEN [s |-> [s EXCEPT !.expiry = clock + Ttl], reply |-> fence[c]]
  ELSE [s |-> s, reply |-> 0]

Reassert(s, c) ==
  LET noted == NoteLoss(s, fence[c])
      isOfBefore == IsGuarded(noted) /\ fence[c] < noted.began
  IN IF (isOfBefore \/ Mutation = "reassert_any") /\ IsFree(noted, c)
     THEN [s |-> [noted EXCEPT !.holder = c, !.expiry = clock + Ttl, !.last = Max(@, fence[c])],
           reply |-> fence[c]]
     ELSE [s |-> noted, reply |-> 0]

Release(s, c) ==
  [s |-> IF s.holder = c THEN [s EXCEPT !.holder = "nobody", !.expiry = 0] ELSE s, reply |-> 1]

Result(operation, c) ==
  CASE operation = "acquire" -> Acquire(srv, c)
    [] operation = "renew" -> Renew(srv, c)
    [] operation = "reassert" -> Reassert(srv, c)
    [] OTHER -> Release(srv, c)

-----------------------------------------------------------------------------
(* Clients.                                                                 *)

Init ==
  /\ clock = 1 /\ srv = Empty /\ replica = Empty
  /\ pc = [c \in Callers |-> "idle"]
  /\ deadline = [c \in Callers |-> 0]
  /\ fence = [c \in Callers |-> 0]
  /\ known = [c \in Callers |-> 0]
  /\ sent = {} /\ highest = 0 /\ ordered = TRUE /\ losses = 0

Inside(c) == pc[c] = "holding" /\ clock < deadline[c]

Waits(c) == \E call \in sent : call[2] = c

Send(c, operation) ==
  /\ ~Waits(c)
  /\ sent' = sent \cup {<<operation, c, clock>>}
  /\ UNCHANGED <<clock, srv, replica, pc, deadline, fence, known, highest, ordered, losses>>

SendAcquire(c) ==
  /\ pc[c] = "idle" /\ (HasFresh \/ losses = 0 \/ known[c] > 0)
  /\ Send(c, "acquire")

\* The reply "missing" of a renewal is not kept: a holder may assert its lease at any time.
SendAsHolder(c) ==
  /\ Inside(c) /\ \E operation \in {"renew", "reassert"} : Send(c, operation)

\* The server executes a call; the client gets the reply, or is no longer interested in it.
Execute(call) ==
  LET operation == call[1]
      c == call[2]
      result == Result(operation, c)
      isGrant == operation = "acquire" /\ result.reply > 0 /\ srv.holder # c
      isWanted == IF operation = "acquire" THEN pc[c] = "idle" ELSE Inside(c)
  IN /\ srv' = result.s
     /\ clock' = clock + 1
     /\ highest' = IF isGrant THEN Max(highest, result.reply) ELSE highest
     /\ ordered' = (ordered /\ (isGrant => result.reply > highest))
     /\ \/ /\ sent' = sent \ {call}
           /\ IF isWanted /\ result.reply > 0 /\ operation # "release"
              THEN /\ pc' = [pc EXCEPT ![c] = "holding"]
                   /\ deadline' = [deadline EXCEPT ![c] = Max(@, call[3] + Ttl)]
                   /\ fence' = [fence EXCEPT ![c] = result.reply]
                   /\ known' = [known EXCEPT ![c] = Max(@, result.reply)]
              ELSE UNCHANGED <<pc, deadline, fence, known>>
        \/ \* The reply is lost, and the call is repeated.
           /\ operation # "acquire"
           /\ UNCHANGED <<sent, pc, deadline, fence, known>>
     /\ UNCHANGED <<replica, losses>>

\* A request or a reply of a holder is lost.
Drop(call) ==
  /\ call[1] # "acquire"
  /\ sent' = sent \ {call}
  /\ UNCHANGED <<clock, srv, replica, pc, deadline, fence, known, highest, ordered, losses>>

\* The work ends. A call that is under way may be executed after the release.
Finish(c) ==
  /\ Inside(c)
  /\ pc' = [pc EXCEPT ![c] = "lost"]
  /\ srv' = Release(srv, c).s
  /\ UNCHANGED <<clock, replica, deadline, fence, known, sent, highest, ordered, losses>>

\* A process acquires another lock of the shard; a fresh one too.
OtherLock(c) ==
  LET noted == NoteLoss(srv, IF c \in Callers THEN known[c] ELSE 0)
      number == NextNumber(noted)
  IN /\ clock' = clock + 1
     /\ srv' = IF IsGuarded(noted) THEN noted ELSE [noted EXCEPT !.last = number]
     /\ known' = IF c \in Callers /\ ~IsGuarded(noted) THEN [known EXCEPT ![c] = number] ELSE known
     /\ UNCHANGED <<replica, pc, deadline, fence, sent, highest, ordered, losses>>

Replicate ==
  /\ IsPartial /\ replica' = srv
  /\ UNCHANGED <<clock, srv, pc, deadline, fence, known, sent, highest, ordered, losses>>

\* A restart without persistence, FLUSHALL, or a failover to an empty replica or one that lags.
Lose ==
  /\ losses < Losses
  /\ losses' = losses + 1 /\ clock' = clock + 1
  /\ srv' = replica
  /\ UNCHANGED <<replica, pc, deadline, fence, known, sent, highest, ordered>>

Tick ==
  /\ clock' = clock + 1
  /\ UNCHANGED <<srv, replica, pc, deadline, fence, known, sent, highest, ordered, losses>>

Next ==
  /\ clock < Steps
  /\ \/ \E c \in Callers : SendAcquire(c) \/ SendAsHolder(c) \/ Finish(c) \/ OtherLock(c)
     \/ \E call \in sent : Execute(call) \/ Drop(call)
     \/ OtherLock("fresh") \/ Replicate \/ Lose \/ Tick

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* What is promised.                                                        *)

\* README, promise 1, over a loss of all data, if every caller of the lock has got a number before.
OneInside == Cardinality({c \in Callers : Inside(c)}) <= 1

\* Promise 2: a grant has a higher fence than all before it, those asserted again included.
FencesIncrease == ordered
=============================================================================
