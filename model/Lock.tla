-------------------------------- MODULE Lock --------------------------------
(***************************************************************************)
(* One lock: leases, deadlines, lost and late calls, the queue with its    *)
(* hand-over, takeover by a later attempt, copies, forced release and a    *)
(* server that loses its data. Each operator below "Server" is one Lua     *)
(* script; README.md has the table.                                        *)
(*                                                                         *)
(* Times are the ticks that are left, so the number of states is finite    *)
(* although time has no end. Fences are an order: `holders` is sorted by   *)
(* fence. Fence.tla has the numbers.                                       *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
  Tokens,    \* one acquisition each: "x", "y" wait, "z" does not; "one", "copy", "retry": one job
  Limit,     \* how many may hold the lock
  Ttl, Claim, Alive,  \* ticks of a lease, of the claim window, of a waiter
  Margin,    \* ticks that a holder subtracts from its deadline
  Drift,     \* ticks by which a holder's clock may be slow during one ttl
  Losses, Lates, Renewals, Deaths, Forces, Failovers,  \* how often each may happen
  GivesUp,   \* TRUE: a caller may stop waiting
  Punctual,  \* TRUE: no time passes during a call
  Mutation   \* "none", or the mistake of a negative control

VARIABLES
  srv,    \* what the server holds
  replica,  \* what its replica holds: the server's state of an earlier moment
  pc,     \* token -> what its client does
  trust,  \* token -> ticks until its own deadline
  claim,  \* waiter -> ticks for which a hand-over message may be trusted
  call,   \* token -> the call under way: [st, trust]
  late,   \* requests of calls that their clients gave up: <<operation, token>>
  forced, \* tokens that an operator took the lock from
  left    \* how often each fault may still happen

vars == <<srv, replica, pc, trust, claim, call, late, forced, left>>

JobOf(t) == IF t \in {"one", "copy", "retry"} THEN "job" ELSE "-"
AttemptOf(t) == IF t = "retry" THEN 2 ELSE 1
Waits(t) == t # "z"

Range(s) == {s[i] : i \in DOMAIN s}
Without(s, S) == SelectSeq(s, LAMBDA t : t \notin S)
Position(s, t) == CHOOSE i \in DOMAIN s : s[i] = t
Max(a, b) == IF a > b THEN a ELSE b
Minus1(n) == Max(n - 1, 0)

-----------------------------------------------------------------------------
(* Server. `told` is the hand-over message that a waiter may still receive: *)
(* "new"; "mid" once the waiter has a later ticket; Stale once its client   *)
(* got that ticket in a reply. `known`: the client of "one" got the fence   *)
(* of its hold in a reply, so its retry carries it.                         *)

Empty == [holders |-> <<>>, expiry |-> [t \in Tokens |-> 0],
          queue |-> <<>>, alive |-> [t \in Tokens |-> 0],
          ended |-> 0, known |-> FALSE, told |-> [t \in Tokens |-> "no"]]

Lapsed(s) == {t \in Range(s.holders) : s.expiry[t] = 0}

RemoveHolders(s, S) ==
  [s EXCEPT !.holders = Without(@, S),
            !.expiry = [t \in Tokens |-> IF t \in S THEN 0 ELSE @[t]]]

LeaveQueue(s, t) == [s EXCEPT !.queue = Without(@, {t}), !.alive[t] = 0]

\* A new fence.
Grant(s, t, ticks) ==
  [s EXCEPT !.holders = Append(@, t), !.expiry[t] = ticks, !.known = IF t = "one" THEN FALSE ELSE @]

\* lib/handover.lua: grant free slots to the first live waiters, for the claim window.
RECURSIVE Serve(_, _)
Serve(s, self) ==
  IF s.queue = <<>> THEN [s |-> s, behind |-> FALSE]
  ELSE LET head == Head(s.queue)
           isAlive == head = self \/ s.alive[head] > 0
           rest == LeaveQueue(s, head)
       IN IF isAlive /\ Len(s.holders) >= Limit THEN [s |-> s, behind |-> head # self]
          ELSE IF head = self THEN [s |-> s, behind |-> FALSE]
          ELSE IF isAlive
            THEN Serve([Grant(rest, head, Claim) EXCEPT !.told[head] = "new"], self)
            ELSE Serve(rest, self)

HandOver(s, self) ==
  IF s.queue = <<>> THEN [s |-> s, behind |-> FALSE]
  ELSE Serve(RemoveHolders(s, Lapsed(s)), self)

PassOn(s) == HandOver(s, "nobody").s

\* lib/takeover.lua: holders of the same job. A later attempt takes over only from the run that
\* published it; every other run of the job is a copy.
SameJob(s, t) ==
  {u \in Range(s.holders) : u # t /\ JobOf(t) # "-" /\ JobOf(u) = JobOf(t) /\ s.expiry[u] > 0}
Earlier(s, t) ==
  {u \in SameJob(s, t) :
     /\ AttemptOf(u) < AttemptOf(t)
     /\ Mutation = "takeover_from_any" \/ (u = "one" /\ s.known)}
Copies(s, t) ==
  {u \in SameJob(s, t) \ Earlier(s, t) :
     /\ t \in Range(s.holders) => Position(s.holders, u) < Position(s.holders, t)}

YieldTo(s, t) == [s |-> PassOn(LeaveQueue(RemoveHolders(s, {t}), t)), reply |-> "copy"]

\* lib/enqueue.lua: join the queue at the end; a repeated call keeps its ticket.
Enqueue(s, t) ==
  IF t \in Range(s.queue) THEN [s EXCEPT !.alive[t] = Alive]
  ELSE [s EXCEPT !.queue = Append(@, t), !.alive[t] = Alive,
                 !.told[t] = IF @ = "new" THEN "mid" ELSE @]

AcquireBeside(s, t) ==
  LET hasRoom == Lapsed(s) # {} \/ Len(s.holders) < Limit
      live == RemoveHolders(s, Lapsed(s))
      after == IF hasRoom THEN HandOver(live, t) ELSE [s |-> live, behind |-> FALSE]
      now == after.s
      earlier == Earlier(now, t)
      first == IF earlier = {} THEN {} ELSE {CHOOSE u \in earlier : TRUE}
  IN IF Copies(now, t) # {} THEN YieldTo(now, t)
     ELSE IF first # {} \/ (Len(now.holders) < Limit /\ ~after.behind)
       THEN [s |-> Grant(LeaveQueue(RemoveHolders(now, first), t), t, Ttl), reply |-> "granted"]
     ELSE [s |-> IF Waits(t) THEN Enqueue(now, t) ELSE now, reply |-> "busy"]

Acquire(s, t) ==
  IF JobOf(t) # "-" /\ s.ended >= AttemptOf(t) THEN [s |-> s, reply |-> "ended"]
  ELSE IF s.holders = <<>> THEN [s |-> Grant(s, t, Ttl), reply |-> "granted"]
  ELSE IF t \in Range(s.holders)
    THEN IF Copies(s, t) # {} THEN YieldTo(s, t)
         ELSE [s |-> [s EXCEPT !.expiry[t] = Ttl], reply |-> "granted"]
  ELSE AcquireBeside(s, t)

Renew(s, t) ==
  IF t \in Range(s.holders) THEN [s |-> [s EXCEPT !.expiry[t] = Ttl], reply |-> "renewed"]
  ELSE [s |-> s, reply |-> "lost"]

\* `leavesMark`: the attempt has ended, and its late copies are dropped.
Release(s, t, leavesMark) ==
  LET target == IF Mutation = "release_by_name" /\ s.holders # <<>> THEN Head(s.holders) ELSE t
      freed == IF target \in Range(s.holders) THEN RemoveHolders(s, {target}) ELSE LeaveQueue(s, t)
      marked == IF leavesMark /\ JobOf(t) # "-" /\ AttemptOf(t) > s.ended
                THEN [freed EXCEPT !.ended = AttemptOf(t)] ELSE freed
  IN [s |-> PassOn(marked), reply |-> "released"]

ForceRelease(s, t) == PassOn(RemoveHolders(s, {t}))

-----------------------------------------------------------------------------
(* Clients.                                                                 *)

NoCall == [st |-> "none", trust |-> 0]
Full == Ttl - Margin + Drift
Sent == [st |-> "sent", trust |-> Full]
SentRelease == [st |-> "sent", trust |-> 0]
\* The same call, counted for the claim window instead of the ttl.
ClaimPart(n) == Max(n - (Ttl - Claim), 0)

Pending(t) == pc[t] \in {"acquiring", "waiting"}

Init ==
  /\ srv = Empty
  /\ replica = Empty
  /\ pc = [t \in Tokens |-> "idle"]
  /\ trust = [t \in Tokens |-> 0]
  /\ claim = [t \in Tokens |-> 0]
  /\ call = [t \in Tokens |-> NoCall]
  /\ late = {}
  /\ forced = {}
  /\ left = [losses |-> Losses, renewals |-> Renewals, deaths |-> Deaths,
             forces |-> Forces, failovers |-> Failovers]

\* The message of a retry exists after the earlier attempt has published it.
IsPublished(t) == t = "retry" => "one" \in Tokens /\ pc["one"] \in {"retrying", "retried"}

Start(t) ==
  /\ pc[t] = "idle" /\ IsPublished(t)
  /\ pc' = [pc EXCEPT ![t] = "acquiring"]
  /\ call' = [call EXCEPT ![t] = Sent]
  /\ UNCHANGED <<replica, srv, trust, claim, late, forced, left>>

\* A waiter asks again; a caller without a reply repeats its call; a release is sent.
Send(t) ==
  /\ pc[t] \in {"acquiring", "waiting", "releasing", "retrying", "leaving"}
  /\ call[t].st = "none"
  /\ Punctual /\ pc[t] = "waiting" => claim[t] = 0 \/ srv.told[t] # "no"  \* not all the time
  /\ call' = [call EXCEPT ![t] = IF Pending(t) THEN Sent ELSE SentRelease]
  /\ srv' = IF Punctual /\ pc[t] = "waiting" /\ claim[t] > 0
            THEN [srv EXCEPT !.told[t] = "no"] ELSE srv  \* it asks because of the message
  /\ UNCHANGED <<replica, pc, trust, claim, late, forced, left>>

SendRenew(t) ==
  /\ pc[t] = "holding" /\ call[t].st = "none" /\ left.renewals > 0
  /\ left' = [left EXCEPT !.renewals = @ - 1]
  /\ call' = [call EXCEPT ![t] = Sent]
  /\ UNCHANGED <<replica, srv, pc, trust, claim, late, forced>>

Operation(t) ==
  CASE pc[t] \in {"acquiring", "waiting"} -> "acquire"
    [] pc[t] = "holding" -> "renew"
    [] pc[t] = "leaving" -> "leave"
    [] OTHER -> "release"

Result(operation, t) ==
  CASE operation = "acquire" -> Acquire(srv, t)
    [] operation = "renew" -> Renew(srv, t)
    [] operation = "leave" -> Release(srv, t, FALSE)
    [] OTHER -> Release(srv, t, TRUE)

\* A message that the client ignores is as good as none.
Stale == IF Mutation = "no_ticket_check" THEN "old" ELSE "no"

\* The server executes the call that its client waits for.
Execute(t) ==
  /\ call[t].st = "sent"
  /\ LET result == Result(Operation(t), t)
         isBusy == result.reply = "busy"
         isPublisher == t = "one" /\ "retry" \in Tokens
     IN /\ srv' = IF isBusy /\ result.s.told[t] = "mid"
                  THEN [result.s EXCEPT !.told[t] = Stale]
                  ELSE IF isPublisher /\ result.reply = "granted"
                  THEN [result.s EXCEPT !.known = TRUE] ELSE result.s
        /\ call' = [call EXCEPT ![t].st = result.reply]
  /\ UNCHANGED <<replica, pc, trust, claim, late, forced, left>>

\* The server executes a request whose client no longer waits for it.
ExecuteLate(operation, t) ==
  /\ <<operation, t>> \in late
  /\ late' = late \ {<<operation, t>>}
  /\ srv' = Result(operation, t).s
  /\ UNCHANGED <<replica, pc, trust, claim, call, forced, left>>

Trusted(t) == IF Mutation = "trust_from_reply" THEN Ttl ELSE call[t].trust

Reply(t) ==
  /\ call[t].st \notin {"none", "sent"}
  /\ call' = [call EXCEPT ![t] = NoCall]
  /\ srv' = IF call[t].st = "busy" THEN srv ELSE [srv EXCEPT !.told[t] = "no"]  \* it unsubscribes
  /\ LET reply == call[t].st IN
     CASE reply = "granted" /\ Trusted(t) > 0 ->
            /\ pc' = [pc EXCEPT ![t] = "holding"]
            /\ trust' = [trust EXCEPT ![t] = Trusted(t)]
            /\ UNCHANGED claim
       [] reply = "granted" /\ Trusted(t) = 0 ->  \* a grant that may have lapsed is not used
            /\ pc' = [pc EXCEPT ![t] = "leaving"]
            /\ UNCHANGED <<trust, claim>>
       [] reply = "busy" ->
            /\ pc' = [pc EXCEPT ![t] = IF Waits(t) THEN "waiting" ELSE "done"]
            /\ claim' = [claim EXCEPT ![t] = IF Waits(t) THEN ClaimPart(call[t].trust) ELSE 0]
            /\ UNCHANGED trust
       [] reply = "copy" ->
            /\ pc' = [pc EXCEPT ![t] = "leaving"]
            /\ UNCHANGED <<trust, claim>>
       [] reply = "renewed" ->
            /\ trust' = [trust EXCEPT ![t] = Trusted(t)]
            /\ UNCHANGED <<pc, claim>>
       [] reply = "lost" ->
            /\ pc' = [pc EXCEPT ![t] = "lost"]
            /\ trust' = [trust EXCEPT ![t] = 0]
            /\ UNCHANGED claim
       [] reply = "released" /\ pc[t] = "retrying" ->
            /\ pc' = [pc EXCEPT ![t] = "retried"]
            /\ UNCHANGED <<trust, claim>>
       [] OTHER ->  \* released; or this attempt has ended elsewhere
            /\ pc' = [pc EXCEPT ![t] = "done"]
            /\ UNCHANGED <<trust, claim>>
  /\ UNCHANGED <<replica, late, forced, left>>

\* A waiter without a job uses the hand-over message without a further call, if it is later than
\* the ticket of its last reply. Others ask again (Send).
Notified(t) ==
  /\ pc[t] = "waiting" /\ call[t].st = "none" /\ JobOf(t) = "-" /\ claim[t] > 0
  /\ srv.told[t] \in {"new", "mid"} \cup (IF Mutation = "no_ticket_check" THEN {"old"} ELSE {})
  /\ pc' = [pc EXCEPT ![t] = "holding"]
  /\ trust' = [trust EXCEPT ![t] = claim[t]]
  /\ claim' = [claim EXCEPT ![t] = 0]
  /\ srv' = [srv EXCEPT !.told[t] = "no"]
  /\ UNCHANGED <<replica, call, late, forced, left>>

\* No reply in time: the request is lost, or comes late, or the reply is lost.
Timeout(t) ==
  /\ call[t].st # "none" /\ left.losses > 0
  /\ left' = [left EXCEPT !.losses = @ - 1]
  /\ call' = [call EXCEPT ![t] = NoCall]
  /\ \/ UNCHANGED late
     \/ /\ call[t].st = "sent" /\ Cardinality(late) < Lates
        /\ late' = late \cup {<<Operation(t), t>>}
  /\ UNCHANGED <<replica, srv, pc, trust, claim, forced>>

\* The patience ends, or the server did not answer.
GiveUp(t) ==
  /\ GivesUp /\ Pending(t) /\ call[t].st = "none"
  /\ pc' = [pc EXCEPT ![t] = "leaving"]
  /\ claim' = [claim EXCEPT ![t] = 0]
  /\ UNCHANGED <<replica, srv, trust, call, late, forced, left>>

\* The work ends inside the deadline. `retry` publishes the next attempt before the release.
Finish(t) ==
  /\ pc[t] = "holding" /\ trust[t] > 0 /\ call[t].st = "none"
  /\ pc' = [pc EXCEPT ![t] =
       IF t = "one" /\ "retry" \in Tokens THEN "retrying" ELSE "releasing"]
  /\ trust' = [trust EXCEPT ![t] = 0]
  /\ UNCHANGED <<replica, srv, claim, call, late, forced, left>>

\* The holder notices that its deadline has passed. Until then a renewal may revive the lease.
Lose(t) ==
  /\ pc[t] = "holding" /\ trust[t] = 0 /\ call[t].st = "none"
  /\ pc' = [pc EXCEPT ![t] = "lost"]
  /\ UNCHANGED <<replica, srv, trust, claim, call, late, forced, left>>

\* A message that was published stays, so a death after that is "retried" too.
Die(t) ==
  /\ left.deaths > 0 /\ pc[t] \notin {"idle", "done", "lost", "retried", "dead"}
  /\ left' = [left EXCEPT !.deaths = @ - 1]
  /\ pc' = [pc EXCEPT ![t] = IF @ = "retrying" THEN "retried" ELSE "dead"]
  /\ trust' = [trust EXCEPT ![t] = 0]
  /\ claim' = [claim EXCEPT ![t] = 0]
  /\ call' = [call EXCEPT ![t] = NoCall]
  /\ srv' = [srv EXCEPT !.told[t] = "no"]
  /\ UNCHANGED <<replica, late, forced>>

Force(t) ==
  /\ left.forces > 0 /\ t \in Range(srv.holders)
  /\ left' = [left EXCEPT !.forces = @ - 1]
  /\ srv' = ForceRelease(srv, t)
  /\ forced' = forced \cup {t}
  /\ UNCHANGED <<replica, pc, trust, claim, call, late>>

Replicate ==
  /\ left.failovers > 0 /\ replica # srv
  /\ replica' = srv
  /\ UNCHANGED <<srv, pc, trust, claim, call, late, forced, left>>

\* The writes since the last Replicate are lost; without one, all data is.
Failover ==
  /\ left.failovers > 0
  /\ left' = [left EXCEPT !.failovers = @ - 1]
  /\ srv' = [replica EXCEPT !.told = srv.told]
  /\ replica' = IF left.failovers > 1 THEN srv' ELSE Empty
  /\ UNCHANGED <<pc, trust, claim, call, late, forced>>

Older(s) == [s EXCEPT !.expiry = [t \in Tokens |-> Minus1(@[t])],
                      !.alive = [t \in Tokens |-> Minus1(@[t])]]

Tick ==
  /\ Punctual => \A t \in Tokens : call[t].st = "none"
  /\ srv' = Older(srv)
  /\ replica' = Older(replica)
  /\ trust' = [t \in Tokens |-> Minus1(trust[t])]
  /\ claim' = [t \in Tokens |-> Minus1(claim[t])]
  /\ call' = [t \in Tokens |-> [call[t] EXCEPT !.trust = Minus1(@)]]
  /\ UNCHANGED <<pc, late, forced, left>>

Client(t) ==
  \/ Start(t) \/ Send(t) \/ SendRenew(t) \/ Reply(t) \/ Notified(t)
  \/ Timeout(t) \/ GiveUp(t) \/ Finish(t) \/ Lose(t) \/ Die(t)

Next ==
  \/ \E t \in Tokens : Client(t) \/ Execute(t) \/ Force(t)
  \/ \E request \in late : ExecuteLate(request[1], request[2])
  \/ Replicate
  \/ Failover
  \/ Tick

Fairness ==
  /\ WF_vars(Tick)
  /\ \A t \in Tokens : WF_vars(Send(t) \/ Execute(t) \/ Reply(t) \/ Finish(t) \/ Lose(t))

Spec == Init /\ [][Next]_vars
FairSpec == Spec /\ Fairness

-----------------------------------------------------------------------------
(* What is promised.                                                        *)

Inside(t) == pc[t] = "holding" /\ trust[t] > 0

\* README, promise 1. A forced release is the operator's decision: that holder is not counted.
NeverMoreThanLimit == Cardinality({t \in Tokens \ forced : Inside(t)}) <= Limit

\* Promise 4: the copies of one message, and the attempts of one job, do not run at once.
NothingTwiceAtOnce ==
  \A t, u \in Tokens \ forced :
    t # u /\ JobOf(t) # "-" /\ JobOf(t) = JobOf(u) => ~(Inside(t) /\ Inside(u))

\* A holder inside its deadline is a holder for the server, and the server's expiry is later.
TrustIsJustified ==
  \A t \in Tokens \ forced :
    Inside(t) => t \in Range(srv.holders) /\ srv.expiry[t] >= trust[t]

\* Of lib/common.lua: while a waiter is alive, no slot is free for it, or a lapsed holder has it.
NoFreeSlotBesideWaiters ==
  (\E t \in Range(srv.queue) : srv.alive[t] > 0) => Len(srv.holders) >= Limit

\* Of acquire.lua: a lock without holders has no queue.
EmptyLockHasNoQueue == srv.holders = <<>> => srv.queue = <<>>

\* The server never stores more holders than slots, nor a token twice.
ServerIsConsistent ==
  /\ Len(srv.holders) <= Limit
  /\ Cardinality(Range(srv.holders)) = Len(srv.holders)
  /\ Cardinality(Range(srv.queue)) = Len(srv.queue)
  /\ Range(srv.holders) \cap Range(srv.queue) = {}

\* Whoever waits gets the lock or a final answer, if holders end or lapse.
WaitersAreServed == \A t \in Tokens : Pending(t) ~> ~Pending(t)
=============================================================================
